"""What waits for a person: approvals of stages, and questions of tasks. Each has a form, drawn from its JSON Schema.

The engine checks the answers and who may give them. What was typed stays when an answer is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from onetray.dashboard.forms import BadForm, SchemaForm
from onetray.dashboard.pages import Flash, Redraw, action, page
from onetray.dashboard.view import Form, Values, View
from onetray.domain.commands import Resume
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput, OnetrayError
from onetray.domain.flow import ANYBODY, Stage, may_answer, not_approver
from onetray.domain.flow_commands import ApproveStage, RejectStage
from onetray.domain.lifecycle import STAGE, WAITING, WAITING_INPUT
from onetray.domain.overview import WaitingEntry
from onetray.domain.question import NOTES, answer_schema, check_answer, left_behind
from onetray.domain.task import Task
from onetray.domain.token import OPERATE
from onetray.http import problems

PER_PAGE = 25
MAX_SHOWN_CHARS = 20_000
FREE_TEXT = {"type": "string", "maxLength": 100_000}
"""The form of a question without one."""
AT_DEADLINE = {
    "approve": "then it is approved", "reject": "then it is rejected", "skip": "then it is skipped",
    "cancel": "then the flow is cancelled",
}  # fmt: skip


class OpenQuestion(NamedTuple):
    """Something that waits for a person, in the list."""

    entry: WaitingEntry
    owner: str
    """Who is asked; empty if anybody."""
    reason: str
    due_at: int | None
    href: str
    why_not: str
    """Why the caller may not answer it; empty if it may."""


@page("/waiting", title="Waiting", nav=45)
def waiting(view: View) -> dict[str, Any]:
    since, after = view.query.whole("since", 0), view.query.whole("after", 0, most=2**62)
    found = view.engine.waiting(since=since, after=after, limit=PER_PAGE)
    tasks = {task.id: task for task in view.engine.tasks_by_id([e.id for e in found.entries if e.entity != "stage"])}
    items = (_stage_item(view, e) if e.entity == STAGE.entity else _task_item(view, e, tasks) for e in found.entries)
    newer = None if found.after is None else view.url(since=found.since, after=found.after)
    return {
        "items": [item for item in items if item is not None], "next_page": newer,
        "first_page": view.url(since=None, after=None) if after else None,
    }  # fmt: skip


def _stage_item(view: View, entry: WaitingEntry) -> OpenQuestion | None:
    stage = view.engine.stage(entry.id)
    if stage.state != WAITING:
        return None
    owner, asked = _owner(stage), _approval(stage)
    return OpenQuestion(
        entry, "" if owner == ANYBODY else owner, str(asked.get("reason") or ""), stage.due_at,
        view.link("approval", id=entry.id), _why_not(view, stage),
    )  # fmt: skip


def _task_item(view: View, entry: WaitingEntry, tasks: dict[str, Task]) -> OpenQuestion | None:
    task = tasks.get(entry.id)
    if task is None or task.state != WAITING_INPUT:
        return None
    owner = task.held_by or ""
    return OpenQuestion(
        entry, "" if owner == ANYBODY else owner, task.held_why or "", None, view.link("question", id=entry.id),
        _lacks_scope(view),
    )  # fmt: skip


def _approval(stage: Stage) -> dict[str, Any]:
    return stage.approval if isinstance(stage.approval, dict) else {}


def _owner(stage: Stage) -> str:
    return str(_approval(stage).get("owner") or ANYBODY)


def _lacks_scope(view: View) -> str:
    if view.may(OPERATE):
        return ""
    return f"the token {view.principal.name!r} lacks the scope {OPERATE}: log in with a token that has it"


def _why_not(view: View, stage: Stage) -> str:
    """Why the caller may not answer an approval."""
    owner, principal = _owner(stage), view.principal
    if not view.may(OPERATE) or may_answer(owner, principal.name, principal.groups):
        return _lacks_scope(view)
    return f"{not_approver(stage.name, owner, principal.name)}: log in with a token of theirs"


@page("/waiting/stage/{id}", title="Approval")
def approval(view: View) -> dict[str, Any]:
    stage = view.engine.stage(view.path["id"])
    stages = view.engine.stages(stage.flow_id)
    before = [each for each in stages if each.order < stage.order and each.result is not None][-1:]
    flow, asked = view.engine.flow(stage.flow_id), _approval(stage)
    shown = [("The flow's input", flow.data), *((f"Result of {each.name}", each.result) for each in before)]
    is_open = stage.state == WAITING and "approve" in stage.actions
    return {
        "stage": stage, "flow": flow, "asked": asked, "owner": _owner(stage), "is_anybody": _owner(stage) == ANYBODY,
        "at_deadline": AT_DEADLINE.get(str(asked.get("on_deadline")), ""), "is_open": is_open,
        "is_early": stage.state == WAITING and not is_open, "answer": stage.answer,
        "why_not": _why_not(view, stage), "shown": _readable(shown), **_form_context(view, _stage_form(stage)),
    }  # fmt: skip


@page("/waiting/task/{id}", title="Question")
def question(view: View) -> dict[str, Any]:
    task = view.engine.task(view.path["id"])
    checkpoint = view.engine.last_checkpoint(task.id)
    shown = [("Payload", task.payload), ("Notes of who asked", left_behind(checkpoint).get(NOTES))]
    return {
        "task": task, "is_open": task.state == WAITING_INPUT, "why_not": _lacks_scope(view), "shown": _readable(shown),
        **_form_context(view, _task_form(checkpoint)),
    }  # fmt: skip


def _stage_form(stage: Stage) -> SchemaForm | None:
    schema = _approval(stage).get("form")
    return None if schema is None else SchemaForm(schema, "Input")


def _task_form(checkpoint: Any) -> SchemaForm:
    schema = answer_schema(checkpoint)
    return SchemaForm(FREE_TEXT if schema is None else schema, "Answer")


def _form_context(view: View, form: SchemaForm | None) -> dict[str, Any]:
    """The form with what was typed and what is wrong with it, if an answer was refused."""
    typed: Values | None = view.carried.get("typed")
    return {
        "form": None if form is None else form.drawn(typed, view.carried.get("errors")),
        "has_fields": form is not None and form.has_fields, "typed": typed or Values(""),
        "problem": view.carried.get("problem"), "names_itself": view.principal.token is None,
    }  # fmt: skip


def _readable(values: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, readable_json(value)) for name, value in values if value is not None]


def readable_json(value: Any) -> str:
    """JSON to read; a large value is cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}\n… ({len(text):,} characters)"


@action("/waiting/stage/{id}", scope=OPERATE)
def answer_stage(view: View, form: Form) -> Flash | Redraw:
    id_ = view.path["id"]
    _speak_as(view, form)
    stage = view.engine.stage(id_)
    try:
        if form.text("verdict") == "reject":
            view.call(RejectStage, flow=id_, note=form.text("note") or None)
            return Flash(f"{stage.name} is rejected.", view.link("waiting"))
        schema_form = _stage_form(stage)
        input_ = None if schema_form is None else schema_form.value(form)
        placed = view.call(ApproveStage, flow=id_, input=input_, note=form.text("note") or None)
    except (BadForm, OnetrayError) as error:
        return _refused("approval", form, error)
    if placed.repeated:
        return _refused("approval", form, Conflict("somebody has approved it meanwhile: your answer was not used"))
    return Flash(f"{stage.name} is approved.", view.link("waiting"))


@action("/waiting/task/{id}", scope=OPERATE)
def answer_task(view: View, form: Form) -> Flash | Redraw:
    id_ = view.path["id"]
    _speak_as(view, form)
    task, asked_in = view.engine.task(id_), form.whole("version", 0)
    try:
        if task.state != WAITING_INPUT or task.version != asked_in:
            raise Conflict("somebody has answered it meanwhile: your answer was not used")
        # Not redacted: the form decides, it is not shown.
        checkpoint = view.services.unredacted.last_checkpoint(id_, namespace=view.namespace)
        answer = _task_form(checkpoint).value(form)
        check_answer(checkpoint, answer)
        view.call(Resume, task=id_, input=answer, cause=form.text("note") or None)
    except (BadForm, OnetrayError) as error:
        return _refused("question", form, error)
    return Flash(f"{task.kind} continues with your answer.", view.link("waiting"))


def _speak_as(view: View, form: Form) -> None:
    """On a server without tokens, everybody says who they are."""
    name = form.text("by")
    if view.principal.token is None and name:
        view.principal = replace(view.principal, name=name)


def _refused(page_name: str, form: Form, error: BadForm | OnetrayError) -> Redraw:
    """The form again, with what was typed, and what is wrong with it."""
    if isinstance(error, BadForm):
        return Redraw(page_name, {"typed": form, "errors": error.errors, "problem": "Mend what is marked below."}, 400)
    if isinstance(error, IllegalTransition):
        problem = "It does not wait for an answer any more: yours was not used. What you typed is below."
    else:
        problem = problems.of_error(error)["detail"]
    carried = {"typed": form, "errors": errors_of(error), "problem": problem}
    return Redraw(page_name, carried, error.status)


def errors_of(error: OnetrayError) -> dict[str, str]:
    """What the engine says about the parts of a value, by JSON pointers."""
    parts = error.facts.get("parts", []) if isinstance(error, InvalidInput) else []
    return {part["at"]: part["message"] for part in reversed(parts)}
