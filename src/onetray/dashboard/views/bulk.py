"""Operations on many jobs: a preview with a question, a list, and how far one is."""

from __future__ import annotations

from typing import Any

from onetray.dashboard.filters import JOB_PARAMETERS, LETTER_PARAMETERS, frozen, job_filters, letter_filters, parameters
from onetray.dashboard.pages import Flash, action, page
from onetray.dashboard.view import Form, Values, View
from onetray.dashboard.views.jobs import job_url
from onetray.domain.bulk import ACTIONS, CANCEL, PRIORITY, REDRIVE
from onetray.domain.checks import choice
from onetray.domain.errors import InvalidInput
from onetray.domain.token import OPERATE

SHOWN = 20
LISTED = 100
MAX_AMOUNT = 1_000_000_000


@page("/bulk", title="Operations", nav=50)
def bulk(view: View) -> dict[str, Any]:
    return {"operations": view.engine.bulks(limit=LISTED)}


@page("/bulk/new", title="Act on many jobs", scope=OPERATE)
def bulk_preview(view: View) -> dict[str, Any]:
    """What the action would do, and the form that starts it."""
    action = choice(view.query.text("action", CANCEL), "action", ACTIONS)
    preview = view.engine.preview_bulk(action, _filters(action, view.query, view.now), limit=SHOWN)
    names = LETTER_PARAMETERS if action == REDRIVE else JOB_PARAMETERS
    return {
        "action": action, "preview": preview, "job_url": job_url(view),
        "chosen": frozen(parameters(view.query, (*names, "id")), view.now),
    }  # fmt: skip


@page("/bulk/{id}", title="Operation")
def bulk_operation(view: View) -> dict[str, Any]:
    operation = view.engine.bulk(view.path["id"])
    return {"operation": operation, "job_url": job_url(view), "again": _again(operation.canary_states)}


def _again(states: dict[str, int]) -> int:
    """How many tasks of a canary have failed again."""
    return sum(states.get(state, 0) for state in ("failed", "dead_lettered", "cancelled"))


def _filters(action: str, values: Values, now: int) -> dict[str, Any]:
    return letter_filters(values) if action == REDRIVE else job_filters(values, now)


@action("/bulk/start")
def start_operation(view: View, form: Form) -> Flash:
    if not form.text("sure") and not form.many("id"):
        raise InvalidInput("tick the box to confirm that all matching jobs are meant", field="sure")
    name = choice(form.text("action"), "action", ACTIONS)
    options: dict[str, Any] = {"limit": form.whole("limit", 0, most=MAX_AMOUNT) or None}
    if name == CANCEL:
        options["hard"] = form.flag("hard")
    if name == PRIORITY:
        options["priority"] = _priority(form.text("priority"))
    if name == REDRIVE:
        options |= {
            "canary": form.whole("canary", 0, most=1_000) or None, "delay_s": form.whole("delay_s", 0, most=MAX_AMOUNT),
        }  # fmt: skip
    filters = _filters(name, form, view.now)
    started = view.engine.start_bulk(name, filters, reason=form.text("reason") or None, **options)
    return Flash("Started. Any worker or server carries it out.", to=view.link("bulk_operation", id=started.id))


def _priority(given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise InvalidInput(f"the priority must be a whole number, not {given[:20]!r}", field="priority") from None


@action("/bulk/{id}/stop")
def stop_operation(view: View, form: Form) -> Flash:
    view.engine.stop_bulk(view.path["id"], reason=form.text("reason") or None)
    return Flash("Stopped. What was done stays done.")


@action("/bulk/{id}/resume")
def resume_operation(view: View, form: Form) -> Flash:
    view.engine.resume_bulk(view.path["id"], reason=form.text("reason") or None)
    return Flash("Resumed.")
