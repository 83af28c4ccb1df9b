"""What the forms of a job's page do: cancel, retry, resume, pause, open, set the priority, answer a stage.

A form chooses the command for a task or for a flow. The engine decides whether it is allowed.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.dashboard.pages import Flash, action
from onetray.dashboard.view import Form, View
from onetray.dashboard.views.job import job_of_view
from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.declare import Command
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow, Placed
from onetray.domain.lifecycle import CANCELLED, SKIPPED
from onetray.domain.task import Receipt, Task
from onetray.domain.token import SUBMIT

STAGE_COMMANDS: dict[str, tuple[type[Command], str]] = {
    "approve": (f.ApproveStage, "The stage is approved."),
    "reject": (f.RejectStage, "The stage is rejected."),
    "skip": (f.SkipStage, "The stage is skipped."),
    "cancel": (f.CancelStage, "The stage is being cancelled."),
}


@action("/jobs/{id}/cancel")
def job_cancel(view: View, form: Form) -> Flash:
    found, hard = job_of_view(view), form.flag("hard")
    if isinstance(found, Flow):
        placed: Placed = view.call(f.CancelFlow, flow=found.id, hard=hard, cause=_reason(form))
        if placed.state == CANCELLED:
            return Flash("The flow is cancelled.")
        return Flash("The flow is being cancelled: its workers are asked to stop.")
    receipt: Receipt = view.call(c.Cancel, task=found.id, hard=hard, cause=_reason(form))
    if receipt.state == CANCELLED:
        return Flash("The task is cancelled.")
    grace = f"{found.policy.cancel_grace_s:g} s"
    return Flash(f"The worker {found.owner} is asked to stop. If it does not within {grace}, the task is revoked.")


@action("/jobs/{id}/retry")
def job_retry(view: View, form: Form) -> Flash:
    found = job_of_view(view)
    if isinstance(found, Flow):
        from_stage = form.text("from_stage") or None
        placed = view.call(f.RetryFlow, flow=found.id, from_stage=from_stage, cause=_reason(form))
        return Flash("This is the new flow.", to=view.link("job", id=placed.id))
    receipt = view.call(c.Redrive, task=found.id, cause=_reason(form))
    return Flash("This is the new task.", to=view.link("job", id=receipt.id))


@action("/jobs/{id}/resume")
def job_resume(view: View, form: Form) -> Flash:
    found = job_of_view(view)
    if isinstance(found, Flow):
        view.call(f.ResumeFlow, flow=found.id, cause=_reason(form))
        return Flash("The flow is resumed.")
    view.call(c.Resume, task=found.id, input=_json(form, "input"), cause=_reason(form))
    return Flash("The task is resumed: it is in its queue again.")


@action("/jobs/{id}/pause")
def job_pause(view: View, form: Form) -> Flash:
    view.call(f.PauseFlow, flow=_flow(view).id, cause=_reason(form))
    return Flash("The flow is paused: its running tasks continue.")


@action("/jobs/{id}/open", scope=SUBMIT)
def job_open(view: View, form: Form) -> Flash:
    view.call(f.OpenFlow, flow=_flow(view).id, cause=_reason(form))
    return Flash("The flow is started.")


@action("/jobs/{id}/priority")
def job_priority(view: View, form: Form) -> Flash:
    found, priority = job_of_view(view), _whole(form, "priority")
    if isinstance(found, Flow):
        view.call(f.SetFlowPriority, flow=found.id, priority=priority, cause=_reason(form))
    else:
        view.call(c.SetPriority, task=found.id, priority=priority, cause=_reason(form))
    return Flash(f"The priority is {priority:,}.")


@action("/jobs/{id}/run-now")
def job_run_now(view: View, form: Form) -> Flash:
    view.call(c.Reschedule, task=_task(view).id, delay_s=0.0, cause=_reason(form))
    return Flash("The task may run now.")


@action("/jobs/{id}/stages/{stage}/{verb}")
def job_stage(view: View, form: Form) -> Flash:
    flow, verb = _flow(view), view.path["verb"]
    if verb not in STAGE_COMMANDS:
        raise NotFound(f"a stage has no action {verb[:50]!r}")
    stage = view.engine.stage(view.path["stage"], raw=True)
    if stage.flow_id != flow.id:
        raise NotFound(f"the flow has no stage {stage.id}")
    command, message = STAGE_COMMANDS[verb]
    fields: dict[str, Any] = {"flow": stage.id, "cause": _reason(form)}
    if issubclass(command, f.Answer):
        fields["note"] = form.text("note") or None
    if command is f.ApproveStage:
        fields["input"] = _json(form, "input")
    if command is f.CancelStage:
        fields["hard"] = form.flag("hard")
    placed: Placed = view.call(command, **fields)
    return Flash("The stage is cancelled." if verb == "cancel" and placed.state in (CANCELLED, SKIPPED) else message)


def _task(view: View) -> Task:
    found = job_of_view(view)
    if not isinstance(found, Task):
        raise InvalidInput("this is a flow: choose one of its tasks", field="id")
    return found


def _flow(view: View) -> Flow:
    found = job_of_view(view)
    if not isinstance(found, Flow):
        raise InvalidInput("only a flow can do that: to hold a task back, pause its queue", field="id")
    return found


def _reason(form: Form) -> str | None:
    return form.text("reason") or None


def _json(form: Form, name: str) -> Any:
    """A field that has JSON in it; None if it is empty."""
    given = form.text(name)
    if not given:
        return None
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f'{name} must be JSON, such as {{"ok": true}}, 5 or "a text": {error}', field=name) from None


def _whole(form: Form, name: str) -> int:
    given = form.text(name)
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 12):
        raise InvalidInput(f"{name} must be a whole number, not {given[:20]!r}", field=name)
    return int(given)
