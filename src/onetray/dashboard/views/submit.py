"""Submit a job: choose a declared flow or a kind, fill in its form, and go to the job's page.

Each form has a key of its own: however often it is sent, it submits one job.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from onetray.dashboard.forms import BadForm, SchemaForm
from onetray.dashboard.pages import Flash, Redraw, action, page
from onetray.dashboard.view import Form, Values, View
from onetray.dashboard.views.waiting import errors_of
from onetray.domain.clock import SECOND
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput, KeyReused, NotFound, OnetrayError
from onetray.domain.flow_commands import SubmitDeclared
from onetray.domain.token import SUBMIT
from onetray.http import problems

MAX_LISTED = 200
ONCE, KEY = "once", "idempotency_key"


@page("/submit", title="Submit", nav=60, nav_scope=SUBMIT)
def submit(view: View) -> dict[str, Any]:
    flow, kind, part = view.query.text("flow"), view.query.text("kind"), view.query.text("q")
    if flow or kind:
        return {"chosen": flow or kind, "is_flow": bool(flow), **_form_context(view, _form(view, flow, kind))}
    flows = [each for each in view.engine.declared_flows() if part.lower() in each.name.lower()]
    names = {each.name for each in flows}
    kinds = [name for name in view.engine.kinds() if part.lower() in name.lower() and name not in names]
    return {
        "chosen": None, "flows": flows[:MAX_LISTED], "kinds": kinds[:MAX_LISTED], "part": part,
        "is_more": max(len(flows), len(kinds)) > MAX_LISTED,
    }  # fmt: skip


def _form(view: View, flow: str, kind: str) -> SchemaForm:
    """The form of a flow's config, or of a task's payload, which has no schema."""
    if flow:
        return SchemaForm(view.engine.declared_flow(flow).config_schema, "Config")
    if view.engine.policy_of(kind) is None:
        raise NotFound(f"there is no kind {kind[:100]!r} in this namespace: start a worker that has it", kind=kind)
    return SchemaForm(None, "Payload")


def _form_context(view: View, form: SchemaForm) -> dict[str, Any]:
    typed: Values = view.carried.get("typed") or Values("")
    return {
        "form": form.drawn(view.carried.get("typed"), view.carried.get("errors")), "has_fields": form.has_fields,
        "typed": typed, "problem": view.carried.get("problem"), "wrong": view.carried.get("wrong", {}),
        "once": view.carried.get(ONCE) or secrets.token_hex(16),
    }  # fmt: skip


@action("/submit", scope=SUBMIT)
def submit_job(view: View, form: Form) -> Flash | Redraw:
    flow, kind = view.query.text("flow"), view.query.text("kind")
    schema_form = _form(view, flow, kind)
    try:
        value, options = schema_form.value(form), _options(form)
        if flow:
            made = view.call(SubmitDeclared, name=flow, config=value, **options)
        else:
            made = view.call(Submit, kind=kind, payload=value, **options, **_task_options(form))
    except (BadForm, OnetrayError) as error:
        return _refused(form, error)
    message = "This form has submitted this job already." if made.repeated else "The job is submitted."
    to = view.link_if("job", id=made.id)
    return Flash(message if to else f"{message} Its id is {made.id}", to)


def _options(form: Form) -> dict[str, Any]:
    return {
        "priority": _whole(form, "priority"), "labels": _labels(form) or None,
        KEY: form.text(KEY) or form.text(ONCE) or None,
    }  # fmt: skip


def _task_options(form: Form) -> dict[str, Any]:
    """A task's queue and time; a flow's tasks have queues of their own."""
    options: dict[str, Any] = {"queue": form.text("queue") or "default"}
    if form.text("delay_s"):
        options["delay_s"] = _seconds(form)
    if form.text("run_at"):
        options["run_at"] = _moment(form)
    return options


def _whole(form: Form, name: str) -> int:
    given = form.text(name) or "0"
    try:
        return int(given[:20])
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number, not {given[:20]!r}", field=name) from None


def _seconds(form: Form) -> float:
    given = form.text("delay_s")
    try:
        return float(given)
    except ValueError:
        raise InvalidInput(f"delay_s must be a number of seconds, not {given[:20]!r}", field="delay_s") from None


def _moment(form: Form) -> int:
    given = form.text("run_at")
    try:
        at = datetime.fromisoformat(given)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise InvalidInput(f"run_at must be a time as 2026-12-31T23:59, not {given[:40]!r}", field="run_at") from None


def _labels(form: Form) -> dict[str, str]:
    labels: dict[str, str] = {}
    for line in filter(None, (line.strip() for line in form.text("labels").splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise InvalidInput(f"labels must have a line name=value for each, not {line[:40]!r}", field="labels")
        labels[name] = value
    return labels


def _refused(form: Form, error: BadForm | OnetrayError) -> Redraw:
    """The form again, with what was typed, and what is wrong with it."""
    carried: dict[str, Any] = {"typed": form, ONCE: form.text(ONCE)}
    if isinstance(error, BadForm):
        carried |= {"errors": error.errors, "problem": "Mend what is marked below."}
        return Redraw("submit", carried, 400)
    carried |= {"errors": errors_of(error), "problem": problems.of_error(error)["detail"]}
    field = str(error.facts.get("field"))
    if isinstance(error, InvalidInput) and field in ("queue", "priority", "delay_s", "run_at", "labels", KEY):
        carried["wrong"] = {field: str(error)}
    if isinstance(error, KeyReused) and not form.text(KEY):
        problem = "This form has submitted a job already, with another content. Submit it again for a second job."
        carried |= {"problem": problem, ONCE: None}
    return Redraw("submit", carried, error.status)
