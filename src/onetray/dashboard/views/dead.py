"""Dead letters: in groups, one by one with their tracebacks; redrive and delete them."""

from __future__ import annotations

from typing import Any

from onetray.dashboard.filters import LETTER_PARAMETERS, letter_filters, parameters
from onetray.dashboard.pages import Flash, action, page
from onetray.dashboard.view import Form, View
from onetray.dashboard.views.jobs import job_url
from onetray.domain.commands import Redrive
from onetray.domain.task import REASON_CODES, Task
from onetray.http.params import cursor_at, cursor_position

GROUPS = 100
LETTERS = 25
CHOICES = 200


@page("/dead", title="Dead letters", nav=40)
def dead(view: View) -> dict[str, Any]:
    filters = letter_filters(view.query)
    wanted = {name: filters.get(name) for name in ("kind", "reason", "error")}
    return {
        "groups": view.engine.dead_groups(**wanted, limit=GROUPS), "is_filtered": any(wanted.values()),
        "chosen": parameters(view.query, LETTER_PARAMETERS), "reasons": REASON_CODES, "most": GROUPS,
        "kinds": view.engine.kinds(limit=CHOICES),
    }  # fmt: skip


@page("/dead/letters", title="Dead letters of a group")
def dead_letters(view: View) -> dict[str, Any]:
    cursor = view.query.text("after")
    after = cursor_position("dead_letters", cursor) if cursor else 0
    letters = view.engine.dead_lines(**letter_filters(view.query), after=after, limit=LETTERS)
    tasks = {task.id: task for task in view.engine.tasks_by_id([letter.id for letter in letters])}
    return {
        "letters": letters, "errors": {id_: traceback_of(task) for id_, task in tasks.items()},
        "chosen": parameters(view.query, LETTER_PARAMETERS), "job_url": job_url(view), "total": None,
        "next": view.url(after=cursor_at("dead_letters", letters[-1].key)) if len(letters) == LETTERS else None,
        "first": view.url(after=None) if cursor else None,
    }  # fmt: skip


def traceback_of(task: Task) -> str:
    """The traceback of a task's last error, or whatever else it says."""
    error = task.error or {}
    return str(error.get("traceback") or f"{error.get('class') or 'Error'}: {error.get('message') or ''}")


@action("/dead/{id}/redrive")
def redrive_letter(view: View, form: Form) -> Flash:
    new = view.call(Redrive, task=view.path["id"], cause=form.text("reason") or None)
    return Flash(f"Redriven as {new.id}.")


@action("/dead/{id}/delete")
def delete_letter(view: View, form: Form) -> Flash:
    view.engine.delete_job(view.path["id"], reason=form.text("reason") or None)
    return Flash(f"The job {view.path['id']} is deleted.")
