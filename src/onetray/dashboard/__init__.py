"""The dashboard: pages for operators at `/` and below `/ui`, from the database, live, without a build step.

How to add to it (docs/dashboard.md describes it for users):

A page is a function in a module of `views/`, which is imported by itself, and a template of the same name:

    @page("/jobs", title="Jobs", nav=20)                   # GET /ui/jobs, templates/jobs.html; nav: place in the menu
    def jobs(view: View) -> dict[str, Any]:                # runs in a thread
        return {"page": view.engine.jobs(states=view.query.many("state"), limit=50)}

`view.engine` has the reads of an engine, redacted, always in the caller's namespace, with the caller's name. The
template begins with

    {% extends "base.html" %}{% import "parts/ui.html" as ui with context %}
    {% block main %} … {% endblock %}

and uses `link("job", id=…)` (a page or an action by the name of its function; other arguments become parameters),
`view.url(page=2)` (this page with other parameters), `view.may("operate")`, the macros `ui.…` of parts/ui.html, and
`ago(at)`, `clock(at)`, `duration(us)`, `number(n)`, `short(id)`. Everything is escaped. A stylesheet of its own is
`static/<function's name>.css`, and is added by itself.

An action is a POST. It needs a scope, and gets the form; its CSRF token is checked before:

    @action("/jobs/{id}/cancel", scope=OPERATE)            # POST /ui/jobs/{id}/cancel
    def cancel_job(view: View, form: Form) -> Flash | str:
        view.call(Cancel, task=view.path["id"], cause=form.text("reason") or None)
        return Flash("The job is cancelled.")              # on the page that it came from; a str is where to go

    {% if view.may("operate") %}{{ ui.button("Cancel", link("cancel_job", id=id), confirm="Cancel it?") }}{% endif %}

An OnetrayError becomes a message on the page that the form came from. A form of several fields begins with
`<form method="post" action="{{ link(…) }}">{{ form_token() }}`.

An action that returns `Redraw("page", {…})` answers with that page: the form again, with what is wrong. forms.py draws
forms from JSON Schemas (`SchemaForm`, parts/form.html), and reads what was typed into them.

A fragment that changes by itself: `{% call live("queues") %} … {% endcall %}`. The page function runs again after a
commit, at most once a second for all who watch it, and the browser gets the fragments whose HTML has changed. Give rows
an `id` or a `data-key`, so that the browser moves them instead of rewriting them. A time is `ago(at)` (the browser
lets it tick; a changing age is not a change). Never render `view.now` into a fragment yourself.

A chart is a function of charts.py that returns SVG as Markup; sizes are SVG attributes and classes. The content
security policy forbids inline scripts and `style=`. What the browser does by itself is in `static/dashboard.js`:
`data-confirm`, `data-copy`, `data-key`, lists with `data-list` (j, k, enter).
"""
