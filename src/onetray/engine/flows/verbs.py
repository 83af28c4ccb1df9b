"""Commands about flows and stages: add, open, pause, resume, cancel, seal, approve, reject, skip, wait.

Owns the effect of each in each state. All run under the flow's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from uuid_utils import uuid7

from onetray.domain.errors import Conflict, Forbidden, IllegalTransition, InvalidInput, NameTaken, NotFound
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import (
    AddStage,
    AddTasks,
    Answer,
    AppendContext,
    ApproveStage,
    CancelFlow,
    CancelStage,
    FlowCommand,
    OpenFlow,
    PauseFlow,
    RejectStage,
    ResumeFlow,
    SealFlow,
    SealStage,
    SetFlowMetadata,
    SetFlowPriority,
    SetStageMetadata,
    SkipStage,
    SubmitFlow,
    WaitStage,
)
from onetray.domain.flow_specs import free_name
from onetray.domain.json_schema import check_value
from onetray.domain.lifecycle import (
    CANCELLED,
    CREATED,
    FAILED,
    FLOW,
    FLOW_PAUSED,
    PENDING,
    QUEUED,
    RUNNING,
    SKIPPED,
    STAGE,
    WAITING,
)
from onetray.domain.machine import SYSTEM, Transition
from onetray.domain.rollup import SEALED, goes_on
from onetray.domain.task import Verdict
from onetray.engine.aliases import NewAlias, require_aliases
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows import advance
from onetray.engine.flows.bulk import withdraw_tasks_of_stage
from onetray.engine.flows.contexts import context_key, find_contexts, write_context
from onetray.engine.flows.create import (
    Drafts,
    add_members,
    add_stages,
    aliases_of,
    write_flow,
)
from onetray.engine.flows.dependencies import Member, known_members, resolve
from onetray.engine.flows.requirements import (
    actions_now,
    approval_spec,
    flow_actor,
    placed_verdict,
    require_allowed,
    require_approver,
    require_open,
    require_takes_tasks,
)
from onetray.engine.flows.retry import retry_flow
from onetray.engine.submit import optional_text_of
from onetray.engine.submit_keys import take_keys
from onetray.store.rows import FlowRow, StageRow

CONTEXT = "context"
"""The entity of an alias of a context."""


def submit_flows(batch: BatchContext, work: list[tuple[int, SubmitFlow]], drafts: Drafts) -> None:
    new: dict[str, FlowRow] = {}
    for i, command, draft in take_keys(batch, [(i, c, drafts.flows[i]) for i, c in work]):
        flow, stages, specs = write_flow(batch, draft)
        if command.start:
            advance.open_flow(batch.locked, flow, flow_actor(command), command.cause)
        advance.settle(batch)
        now = new[flow.id] = batch.locked.flows[flow.key]
        batch.answer(i, Verdict(Placed(
            now.id, FLOW.entity, now.state, now.version, command.actor, False, tuple(s.id for s in stages),
            tuple(s.id for s in specs),
        )))  # fmt: skip
    for i, _ in work:
        receipt = batch.verdicts[i].value
        # A repeated submit in the same batch was answered before the flow was written.
        if isinstance(receipt, Placed) and receipt.repeated and receipt.id in new:
            now = new[receipt.id]
            batch.answer(i, Verdict(receipt._replace(state=now.state, version=now.version)))


def run_flow_command(
    batch: BatchContext, i: int, command: FlowCommand, flow: FlowRow, stage: StageRow | None, drafts: Drafts
) -> None:
    """Run one command about a flow or a stage."""
    try:
        verdict = HANDLERS[command.verb](batch, command, flow, stage, drafts, i)
        about = stage or flow
        if isinstance(verdict.value, Placed) and verdict.value.id == about.id:
            verdict = Verdict(verdict.value._replace(was=about.state))
    except (Conflict, Forbidden, NotFound, InvalidInput) as e:
        # These are raised before anything is written. Any other error rolls the transaction back.
        verdict = Verdict(error=e)
    batch.answer(i, verdict)


def _add_stage(batch: BatchContext, c: AddStage, flow: FlowRow, _: object, drafts: Drafts, i: int) -> Verdict:
    require_open(batch, FLOW, flow, "take a stage", c.actor)
    _require_not_stopped(batch, flow, c.actor)
    draft = drafts.stages[i]
    if draft.name is None:
        names = {name for (name,) in batch.tx.query("names_of_stages", job=flow.key)}
        draft.name = free_name(str(draft.type), flow.stages + 1, names, batch.limits.name_chars)
    elif batch.tx.query("stage_by_name", job=flow.key, name=draft.name):
        raise NameTaken(f"the flow has a stage called {draft.name!r} already", name=draft.name)
    is_next = not flow.stages_open
    check_members(batch, flow, flow.stages + 1, draft.tasks)
    (stage,) = add_stages(batch, flow, [draft], flow_actor(c), c.cause, c.trace)
    specs = add_members(batch, flow, [(stage, member) for member in draft.tasks])
    if is_next and flow.state != CREATED:
        advance.advance(batch.locked, batch.locked.flows[flow.key], 0)
    _open_with(batch, c, flow)
    return placed_verdict(batch, stage, c, tasks=tuple(s.id for s in specs), stages=(stage.id,))


def _require_not_stopped(batch: BatchContext, flow: FlowRow, actor_kind: str) -> None:
    """Raise IllegalTransition if a stage has stopped the flow and later stages are still being skipped."""
    stage = batch.locked.current(flow)
    if stage is not None and stage.state in STAGE.terminal and not goes_on(stage.state, stage.on_failure):
        raise IllegalTransition(
            f"the stage {stage.name!r} is {stage.state}, and the flow ends with it: it cannot take a stage",
            **{"from": flow.state, "attempted": "take a stage", "allowed": list(actions_now(batch, flow, actor_kind))},
        )


def _add_tasks(batch: BatchContext, c: AddTasks, flow: FlowRow, stage: StageRow, drafts: Drafts, i: int) -> Verdict:
    require_open(batch, FLOW, flow, "take tasks", c.actor)
    require_takes_tasks(batch, stage, c.actor)
    spawned_by = _key_of_member(batch, flow, c.spawned_by) if c.spawned_by is not None else None
    members = drafts.tasks[i]
    for spec, _ in members:
        spec.spawned_by, spec.trace = spawned_by, spec.trace or c.trace
    check_members(batch, flow, stage.ord, members)
    specs = add_members(batch, flow, [(stage, member) for member in members])
    _open_with(batch, c, flow)
    return placed_verdict(batch, stage, c, tasks=tuple(s.id for s in specs))


def _open_with(batch: BatchContext, c: AddStage | AddTasks, flow: FlowRow) -> None:
    """Open a flow with what was added to it. Its lock makes sure that only the first of several does."""
    if c.open and flow.state == CREATED:
        advance.open_flow(batch.locked, batch.locked.flows[flow.key], flow_actor(c), c.cause, c.trace)


def check_members(batch: BatchContext, flow: FlowRow, ord_: int, members: list[Member]) -> None:
    """Raise errors about names, dependencies, contexts and aliases before anything is written."""
    find_contexts(batch, flow, (spec for spec, _ in members))
    resolve([(ord_, member) for member in members], known_members(batch, flow, members))
    require_aliases(batch.tx, aliases_of(batch.tx, [spec for spec, _ in members]))


def _key_of_member(batch: BatchContext, flow: FlowRow, id_: str) -> int:
    for _, key, job in batch.tx.query("keys_of", ids=[id_]):
        if job == flow.key:
            return int(key)
    raise NotFound(f"there is no task {id_} in this flow", task=id_)


def _open(batch: BatchContext, c: OpenFlow, flow: FlowRow, _: object, *__: Any) -> Verdict:
    require_open(batch, FLOW, flow, "open", c.actor)
    if flow.state != CREATED:
        return placed_verdict(batch, flow, c, repeated=True)
    require_allowed(batch, FLOW, FLOW.open, flow, c)
    advance.open_flow(batch.locked, flow, flow_actor(c), c.cause, c.trace)
    return placed_verdict(batch, flow, c)


def _pause(batch: BatchContext, c: PauseFlow, flow: FlowRow, _: object, *__: Any) -> Verdict:
    if flow.state == FLOW_PAUSED:
        return placed_verdict(batch, flow, c, repeated=True)
    require_open(batch, FLOW, flow, "pause", c.actor)
    require_allowed(batch, FLOW, FLOW.pause, flow, c)
    batch.locked.move_flow(FLOW.pause, flow, flow_actor(c), cause=c.cause, trace=c.trace)
    stage = batch.locked.current(flow)
    if stage is not None:
        withdraw_tasks_of_stage(batch.locked, stage)
    return placed_verdict(batch, flow, c)


def _resume(batch: BatchContext, c: ResumeFlow, flow: FlowRow, _: object, *__: Any) -> Verdict:
    require_allowed(batch, FLOW, FLOW.resume, flow, c)
    require_open(batch, FLOW, flow, "resume", c.actor)
    flow = batch.locked.move_flow(FLOW.resume, flow, flow_actor(c), cause=c.cause, trace=c.trace)
    batch.locked.flows_touched.add(flow.key)
    advance.resume_current_stage(batch.locked, flow)
    return placed_verdict(batch, flow, c)


def _cancel(batch: BatchContext, c: CancelFlow, flow: FlowRow, _: object, *__: Any) -> Verdict:
    require_allowed(batch, FLOW, FLOW.cancel, flow, c)
    how = "hard" if c.hard else "soft"
    if flow.ending is not None and (flow.ending_how == "hard" or how == "soft"):
        return placed_verdict(batch, flow, c, repeated=True)
    why = c.cause or f"the flow was cancelled by {flow_actor(c)}"
    stage = batch.locked.current(flow)
    if stage is not None:
        # Before the note: a claim in progress comes before the cancel in the log.
        withdraw_tasks_of_stage(batch.locked, stage)
    batch.locked.note_flow(flow.key, "flow.cancel_requested", flow_actor(c), cause=c.cause, trace=c.trace, hard=c.hard)
    advance.end_flow_early(batch.locked, flow, CANCELLED, how, why, flow_actor(c))
    return placed_verdict(batch, flow, c)


def _set_flow_metadata(batch: BatchContext, c: SetFlowMetadata, flow: FlowRow, _: object, *__: Any) -> Verdict:
    batch.tx.batch("set_flow_metadata", {"key": [flow.key], "metadata": [optional_text_of(c.metadata)]})
    batch.locked.note_flow(flow.key, "flow.metadata_set", flow_actor(c), cause=c.cause, trace=c.trace)
    return placed_verdict(batch, flow, c)


def _set_stage_metadata(batch: BatchContext, c: SetStageMetadata, flow: FlowRow, stage: StageRow, *_: Any) -> Verdict:
    batch.tx.batch("set_stage_metadata", {"key": [stage.key], "metadata": [optional_text_of(c.metadata)]})
    batch.locked.note_flow(
        flow.key, "stage.metadata_set", flow_actor(c), cause=c.cause, trace=c.trace, stage=stage.id
    )  # fmt: skip
    return placed_verdict(batch, stage, c)


def _set_priority(batch: BatchContext, c: SetFlowPriority, flow: FlowRow, _: object, *__: Any) -> Verdict:
    require_open(batch, FLOW, flow, "change its priority", c.actor)
    if flow.priority == c.priority:
        return placed_verdict(batch, flow, c, repeated=True)
    batch.locked.save()
    moved = batch.tx.query("set_ranks", job=flow.key, priority=c.priority)
    batch.limit_changes.enter({
        "queue": [line for line, _ in moved], "rank": -c.priority, "key": [key for _, key in moved],
    })  # fmt: skip
    batch.tx.query("set_priorities", job=flow.key, priority=c.priority)
    batch.rows = {
        key: row._replace(priority=c.priority) if row.job == flow.key and row.state == QUEUED else row
        for key, row in batch.rows.items()
    }
    batch.locked.note_flow(
        flow.key, "flow.priority_set", flow_actor(c), cause=c.cause, trace=c.trace, was=flow.priority,
        priority=c.priority,
    )  # fmt: skip
    return placed_verdict(batch, batch.locked.change_flow(flow, priority=c.priority), c)


def _cancel_stage(batch: BatchContext, c: CancelStage, flow: FlowRow, stage: StageRow, *_: Any) -> Verdict:
    require_allowed(batch, STAGE, STAGE.cancel, stage, c)
    how = "hard" if c.hard else "soft"
    if stage.ending == CANCELLED and (flow.ending is not None or stage.ending_how == "hard" or how == "soft"):
        return placed_verdict(batch, stage, c, repeated=True)
    if stage.ending_how is None:
        require_open(batch, STAGE, stage, "cancel", c.actor)
    if flow.current != stage.key and not goes_on(CANCELLED, stage.on_failure):
        raise Conflict(
            f"the flow would stop when it gets to stage {stage.name!r}: skip the stage, or cancel the flow",
            stage=stage.id,
        )
    why = c.cause or f"the stage was cancelled by {flow_actor(c)}"
    withdraw_tasks_of_stage(batch.locked, stage)
    batch.locked.stage_ends[stage.key] = STAGE.cancel, flow_actor(c), why, c.trace
    advance.end_stage_early(batch.locked, batch.locked.change(stage, due_at=None, ending_how=how), CANCELLED, why)
    return placed_verdict(batch, stage, c)


def _seal_flow(batch: BatchContext, c: SealFlow, flow: FlowRow, _: object, *__: Any) -> Verdict:
    """Take no more stages, nor tasks for the stages."""
    require_open(batch, FLOW, flow, "be sealed", c.actor)
    locked = batch.locked
    locked.change_flow(flow, sealed=SEALED)
    locked.note_flow(flow.key, "flow.sealed", flow_actor(c), cause=c.cause, trace=c.trace)
    for stage in locked.with_changes(batch.tx.query("unended_stages", job=flow.key)):
        if stage.state not in STAGE.terminal:
            locked.touch(locked.change(stage, sealed=SEALED))
    locked.flows_touched.add(flow.key)
    return placed_verdict(batch, flow, c)


def _seal_stage(batch: BatchContext, c: SealStage, flow: FlowRow, stage: StageRow, *__: Any) -> Verdict:
    require_open(batch, STAGE, stage, "be sealed", c.actor)
    batch.locked.touch(batch.locked.change(stage, sealed=SEALED))
    batch.locked.note_flow(flow.key, "stage.sealed", flow_actor(c), cause=c.cause, trace=c.trace, stage=stage.id)
    return placed_verdict(batch, stage, c)


def _wait(batch: BatchContext, c: WaitStage, flow: FlowRow, stage: StageRow, *__: Any) -> Verdict:
    require_open(batch, STAGE, stage, "wait", c.actor)
    if stage.state == WAITING:
        return placed_verdict(batch, stage, c, repeated=True)
    require_allowed(batch, STAGE, STAGE.wait, stage, c)
    if c.approval is not None:
        require_approver(stage, approval_spec(batch, stage), c)
    approval = None if c.approval is None else orjson.dumps(c.approval).decode()
    advance.wait_for_approval(batch.locked, stage, flow_actor(c), approval, c.cause, c.trace)
    return placed_verdict(batch, stage, c)


def _require_current(flow: FlowRow, stage: StageRow) -> None:
    if flow.current != stage.key or flow.state == CREATED:
        raise Conflict(f"it is not the turn of stage {stage.name!r}: the stage before it has not ended", stage=stage.id)


def _store_answer(batch: BatchContext, stage: StageRow, c: Answer, verdict: str, input_: Any = None) -> str:
    """Store who answered, when and how."""
    body = {"by": flow_actor(c), "at": batch.tx.now, "verdict": verdict, "note": c.note, "input": input_}
    # For the event, if the stage ends in a later step.
    body |= {name: value for name, value in (("cause", c.cause), ("trace", c.trace)) if value is not None}
    text = orjson.dumps(body).decode()
    batch.tx.batch("set_answer", {"key": [stage.key], "answer": [text]})
    return text


def _approve(batch: BatchContext, c: ApproveStage, flow: FlowRow, stage: StageRow, *__: Any) -> Verdict:
    locked = batch.locked
    if stage.state in (PENDING, RUNNING) and stage.ending is None:
        return placed_verdict(batch, stage, c, repeated=True)
    require_open(batch, STAGE, stage, "approve", c.actor)
    require_allowed(batch, STAGE, STAGE.approve, stage, c)
    approval = approval_spec(batch, stage)
    require_approver(stage, approval, c)
    _require_current(flow, stage)
    if stage.deciding is not None:
        raise Conflict(f"the condition of stage {stage.name!r} is being decided: try again later", stage=stage.id)
    form = approval.get("form")
    if form is not None and c.actor != SYSTEM:
        check_value(form, c.input, "input", "approval.form")
    answer = _store_answer(batch, stage, c, "approved", c.input)
    stage = locked.move_stage(
        STAGE.approve, stage, flow_actor(c), cause=c.cause or c.note, trace=c.trace, detail=answer, answer=answer
    )
    stage = locked.change(stage, due_at=None)
    if stage.started_at is not None:
        locked.move_stage(STAGE.start, stage)
    advance.open_tasks(locked, stage)
    return placed_verdict(batch, stage, c)


def _end_by_answer(
    batch: BatchContext, c: Answer, flow: FlowRow, stage: StageRow, transition: Transition, target: str, verdict: str
) -> Verdict:
    """Reject or skip a stage: its tasks are cancelled."""
    require_open(batch, STAGE, stage, transition.name, c.actor)
    require_allowed(batch, STAGE, transition, stage, c)
    require_approver(stage, approval_spec(batch, stage), c)
    if transition is STAGE.reject:
        _require_current(flow, stage)
    _store_answer(batch, stage, c, verdict)
    why = f"{verdict} by {flow_actor(c)}" + (f": {c.note}" if c.note else "")
    batch.locked.stage_ends[stage.key] = transition, flow_actor(c), c.cause or c.note or why, c.trace
    advance.end_stage_early(batch.locked, batch.locked.change(stage, due_at=None), target, why)
    return placed_verdict(batch, stage, c)


def _reject(batch: BatchContext, c: RejectStage, flow: FlowRow, stage: StageRow, *__: Any) -> Verdict:
    return _end_by_answer(batch, c, flow, stage, STAGE.reject, FAILED, "rejected")


def _skip(batch: BatchContext, c: SkipStage, flow: FlowRow, stage: StageRow, *__: Any) -> Verdict:
    return _end_by_answer(batch, c, flow, stage, STAGE.skip, SKIPPED, "skipped")


def _append_context(batch: BatchContext, c: AppendContext, flow: FlowRow, _: object, *__: Any) -> Verdict:
    require_open(batch, FLOW, flow, "take a context", c.actor)
    task = _key_of_member(batch, flow, c.task) if c.task is not None else None
    parent = flow.context if c.parent is None else context_key(batch, flow, c.parent)
    key, id_ = batch.tx.new_keys(1)[0], str(uuid7())
    require_aliases(batch.tx, [] if c.alias is None else [NewAlias(flow.ns, c.alias, CONTEXT, key, id_)])
    write_context(
        batch, flow, key, c.payload_json, c.scope, task, parent, c.label, id_, by=flow_actor(c), cause=c.cause,
        trace=c.trace,
    )  # fmt: skip
    # A context in the scope of the run becomes the current one.
    if c.scope == "run":
        batch.locked.change_flow(flow, context=key)
    advance.settle(batch)
    return Verdict(id_)


def time_out_flow(batch: BatchContext, flow: FlowRow) -> None:
    """Fail a flow whose deadline has passed, and cancel its open tasks."""
    if flow.state in FLOW.terminal or flow.ending == FAILED:
        return
    advance.end_flow_early(batch.locked, flow, FAILED, "hard", "timed out or was orphaned (deadline)", "system:janitor")


def approval_is_due(batch: BatchContext, flow: FlowRow, stage: StageRow, at: int) -> None:
    """Apply `on_deadline` of an approval that nobody has answered in time."""
    if stage.state != WAITING or stage.due_at != at or stage.ending is not None or flow.ending is not None:
        return
    approval = approval_spec(batch, stage)
    outcome = approval.get("on_deadline") or "reject"
    note = f"nobody answered in {approval['deadline_s']:g} s"
    fields: dict[str, Any] = {"flow": stage.id, "actor": SYSTEM, "actor_name": "janitor", "note": note}
    match outcome:
        case "approve":
            _approve(batch, ApproveStage(**fields), flow, stage)
        case "skip":
            _skip(batch, SkipStage(**fields), flow, stage)
        case "cancel":
            advance.end_flow_early(batch.locked, flow, CANCELLED, "soft", note, "system:janitor")
        case _:
            _reject(batch, RejectStage(**fields), flow, stage)


HANDLERS: dict[str, Callable[..., Verdict]] = {
    "add_stage": _add_stage,
    "add_tasks": _add_tasks,
    "open_flow": _open,
    "pause_flow": _pause,
    "resume_flow": _resume,
    "cancel_flow": _cancel,
    "set_flow_metadata": _set_flow_metadata,
    "set_stage_metadata": _set_stage_metadata,
    "set_flow_priority": _set_priority,
    "cancel_stage": _cancel_stage,
    "seal_flow": _seal_flow,
    "retry_flow": retry_flow,
    "append_context": _append_context,
    "seal_stage": _seal_stage,
    "wait_stage": _wait,
    "approve_stage": _approve,
    "reject_stage": _reject,
    "skip_stage": _skip,
}
