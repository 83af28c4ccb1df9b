"""Advance stages and flows after the moves of their tasks.

A stage that is done ends, then the next one begins; the last one ends the flow. Decides by the counters alone (see
domain/rollup.py), in the transaction of the task's move, under the flow's lock. If that is more than a step may do, a
due row leaves the rest to the janitor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.flow import stages_failed
from onetray.domain.lifecycle import (
    CANCELLED,
    CREATED,
    FAILED,
    FLOW,
    FLOW_PAUSED,
    PARTIAL,
    PENDING,
    QUEUED,
    RUNNING,
    SKIPPED,
    STAGE,
    SUCCEEDED,
    TASK,
    WAITING,
)
from onetray.domain.rollup import (
    SEALED,
    counts_as,
    fails_at_once,
    flow_is_done,
    flow_outcome,
    goes_on,
    stage_is_done,
    stage_outcome,
)
from onetray.engine.flows.bulk import STEP, cancel_tasks_of_stage, release_tasks_of_stage, withdraw_tasks_of_stage
from onetray.engine.flows.compensation import compensate, note_outcome
from onetray.engine.flows.create import DEPENDENCY_FAILED, control_task
from onetray.engine.flows.locked import LockedFlows
from onetray.engine.flows.outcome import columns_of_end, decision, stage_end
from onetray.engine.pending_writes import APPROVAL, CASCADE, ENGINE, RUN, PendingWrites, event_detail
from onetray.store.rows import FlowRow, StageRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

_FLOW_ENDS = {SUCCEEDED: FLOW.succeed, PARTIAL: FLOW.end_partly, FAILED: FLOW.fail, CANCELLED: FLOW.cancel}


def settle(batch: BatchContext) -> None:
    """Advance all stages and flows that the batch has changed so far, and write them."""
    locked = batch.locked
    if not (locked.flows or locked.touched):
        return
    budget = locked.budget = locked.budget or [STEP]
    while locked.touched or locked.ended or locked.ended_controls or locked.flows_touched:
        _update_dependents(locked)
        _apply_conditions(locked)
        touched, locked.touched = locked.touched, set()
        for stage in sorted((locked.stages[key] for key in touched), key=lambda s: (s.job, s.ord)):
            locked.flows_touched.add(stage.job)
            _decide_stage(locked, stage.key, budget)
        if not (locked.touched or locked.ended or locked.ended_controls):
            flows, locked.flows_touched = locked.flows_touched, set()
            for key in sorted(flows):
                _decide_flow(locked, locked.flows[key])
    locked.started.clear()
    locked.new_successes.clear()
    locked.save()


def _update_dependents(locked: LockedFlows) -> None:
    """Make tasks claimable whose last dependency has succeeded; cancel those with a failed dependency."""
    tx = locked.batch.tx
    while locked.ended:
        ended, locked.ended = locked.ended, []
        state_of = {row.key: state for row, state in ended if locked.flows[row.job].chained}
        dependents = sorted(tx.query("dependents", keys=sorted(state_of)), key=lambda row: row.task) if state_of else []
        if not dependents:
            continue
        rows = {row.key: row for row in tx.lock(sorted({task for _, task, _ in dependents}))}
        locked.load(list(rows.values()))
        writes = PendingWrites(locked.batch)
        met: dict[int, int] = {}
        for needs, task, id_ in dependents:
            row = rows[task]
            if row.state != QUEUED:
                continue
            if state_of[needs] == SUCCEEDED:
                met[task] = met.get(task, 0) + 1
            else:
                rows[task] = locked.batch.rows[task] = writes.add(
                    TASK.cancel,
                    row,
                    ENGINE,
                    cause=DEPENDENCY_FAILED,
                    detail=event_detail(dependency=id_, was=state_of[needs]),
                )
        if met:
            tx.batch("meet", {"key": list(met), "met": list(met.values())})
        for task, n in met.items():
            row = rows[task] = rows[task]._replace(unmet=rows[task].unmet - n)
            locked.batch.rows[task] = row
            if row.state == QUEUED and row.unmet == 0 and not locked.holds_back(row):
                writes.enter_queue(row)
        writes.flush()


def _apply_conditions(locked: LockedFlows) -> None:
    """Begin or skip a stage by the result of its control task; fail it if the control task failed."""
    ended, locked.ended_controls = locked.ended_controls, []
    for row, state, result in ended:
        assert row.stage is not None
        stage = locked.stage(row.stage)
        if stage.deciding != row.key:
            continue
        stage = locked.change(stage, deciding=None)
        locked.touch(stage)
        if stage.state in STAGE.terminal or stage.ending is not None:
            continue
        answer = orjson.loads(result) if result else None
        if state != SUCCEEDED:
            end_stage_early(locked, stage, FAILED, f"its condition could not be decided: the control task is {state}")
        elif not answer:
            locked.stage_ends[stage.key] = STAGE.skip, ENGINE, "its condition is not met", None
            end_stage_early(locked, stage, SKIPPED, "its condition is not met")
        else:
            begin_stage(locked, stage, answer=answer)


def _decide_stage(locked: LockedFlows, key: int, budget: list[int]) -> None:
    stage = locked.stages[key]
    flow = locked.flows[stage.job]
    if stage.state in STAGE.terminal:
        return
    if key in locked.started and stage.state == PENDING:
        stage = _start_stage(locked, stage)
    # A stage whose turn has not come fails when it comes, and then stops the later stages.
    is_current = stage.state != CREATED and flow.current == stage.key
    if stage.ending is None and is_current and fails_at_once(flow.roll_up, stage):
        stage = locked.change(stage, ending=FAILED, ending_why="a task failed for good")
    if stage.ending is not None:
        _cancel_and_end(locked, stage, budget)
    elif stage.state in (PENDING, RUNNING) and stage_is_done(stage):
        _end_stage(locked, stage, stage_outcome(flow.roll_up, stage))


def _start_stage(locked: LockedFlows, stage: StageRow) -> StageRow:
    stage = locked.move_stage(STAGE.start, stage)
    flow = locked.flows[stage.job]
    if flow.state == PENDING:
        locked.move_flow(FLOW.start, flow)
    return stage


def end_stage_early(locked: LockedFlows, stage: StageRow, target: str, why: str) -> None:
    """Mark a stage as ending. `settle` cancels its open tasks and then ends it."""
    locked.change(stage, ending=target, ending_why=why)
    locked.touch(stage)


def _cancel_and_end(locked: LockedFlows, stage: StageRow, budget: list[int]) -> None:
    """Cancel the open tasks of a stage, in bounded steps, then end it."""
    flow = locked.flows[stage.job]
    if not cancel_tasks_of_stage(locked, flow, stage, budget):
        # The janitor cancels the rest. None of it may be claimed meanwhile.
        withdraw_tasks_of_stage(locked, stage)
        PendingWrites(locked.batch).due_now(flow.key, CASCADE)
        return
    stage = locked.stages[stage.key]
    if (flow.ending_how or stage.ending_how) == "soft" and stage.open:
        return  # Cancels were requested: the report of the last worker ends the stage.
    assert stage.ending is not None
    outcome = stage.ending
    if flow.ending == CANCELLED and stage.state in (PENDING, RUNNING):
        outcome = stage_outcome(flow.roll_up, stage, cancelling=True)
    if outcome == FAILED and stage.state == CREATED:
        stage = locked.move_stage(STAGE.open, stage, cause=stage.ending_why)
    _end_stage(locked, stage, outcome)


def _end_stage(locked: LockedFlows, stage: StageRow, outcome: str) -> None:
    """End a stage, count it in its flow, and begin the next one."""
    flow = locked.flows[stage.job]
    transition, by, cause, trace = stage_end(locked, stage, outcome)
    if stage.state not in transition.sources:
        for hop in STAGE.path(transition, stage.state)[:-1]:
            assert hop is STAGE.start
            stage = _start_stage(locked, stage)
    columns = columns_of_end(locked, stage, transition)
    why = cause or stage.ending_why
    # `on_failure` ignores a failure of the stage itself, not a cancel of its flow.
    with_flow = stage.ending == outcome == CANCELLED and stage.ending_how is None
    count = outcome if with_flow else counts_as(outcome, stage.on_failure)
    detail = decision(flow, stage, outcome, why, count)
    locked.move_stage(transition, stage, by, cause=why, trace=trace, detail=detail, **columns)
    flow = locked.flows[stage.job]
    flow = locked.change_flow(flow, stages_open=flow.stages_open - 1, **{count: getattr(flow, count) + 1})
    locked.flows_touched.add(flow.key)
    if flow.ending is not None or flow.current != stage.key:
        return
    if goes_on(outcome, stage.on_failure):
        advance(locked, flow, stage.ord)
    else:
        _skip_later_stages(locked, flow, stage, outcome)


def _skip_later_stages(locked: LockedFlows, flow: FlowRow, stage: StageRow, outcome: str) -> None:
    """Skip the stages after one that stops the flow, and take no more."""
    locked.change_flow(flow, sealed=SEALED)
    for later in locked.with_changes(locked.batch.tx.query("unended_stages", job=flow.key)):
        if later.state not in STAGE.terminal and later.ord > stage.ord:
            end_stage_early(locked, later, SKIPPED, f"stage {stage.name!r} is {outcome}")


def advance(locked: LockedFlows, flow: FlowRow, ord_: int) -> None:
    """Begin the first stage after this place that has not ended."""
    stages = locked.with_changes(locked.batch.tx.query("next_stage", job=flow.key, ord=ord_))
    # Ends of stages in this transaction are not in the database yet.
    while stages and stages[0].state in STAGE.terminal:
        stages = locked.with_changes(locked.batch.tx.query("next_stage", job=flow.key, ord=stages[0].ord))
    if stages:
        locked.change_flow(flow, current=stages[0].key)
        locked.flows_touched.add(flow.key)
        begin_stage(locked, stages[0])


def begin_stage(locked: LockedFlows, stage: StageRow, answer: Any = None) -> None:
    """Open a stage whose turn has come, unless it needs its condition decided or an approval first."""
    stage = locked.stages[stage.key]
    flow = locked.flows[stage.job]
    locked.touch(stage)
    if stage.ending is not None:
        return
    if stage.conditional and answer is None:
        if stage.deciding is None:
            control_task(locked, flow, stage)
    elif stage.state == WAITING:
        _set_deadline(locked, stage)
    elif stage.gate:
        stage = start_waiting(locked, stage)
        _set_deadline(locked, stage)
    elif stage.sealed == SEALED and not stage.total:
        locked.stage_ends[stage.key] = STAGE.skip, ENGINE, "it has no tasks", None
        end_stage_early(locked, stage, SKIPPED, "it has no tasks")
    else:
        detail = event_detail(condition=answer) if answer is not None else None
        locked.move_stage(STAGE.open, stage, detail=detail)
        open_tasks(locked, stage)


def start_waiting(
    locked: LockedFlows,
    stage: StageRow,
    by: str = ENGINE,
    approval: str | None = None,
    cause: str | None = None,
    trace: str | None = None,
) -> StageRow:
    """Make a stage wait for an approval."""
    if approval is None:
        (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
        approval = specs.approval
    return locked.move_stage(
        STAGE.wait, stage, by, cause=cause, trace=trace, approval=approval,
        detail=event_detail(approval=orjson.Fragment(approval)) if approval else None,
    )  # fmt: skip


def _set_deadline(locked: LockedFlows, stage: StageRow) -> None:
    """Start the deadline of the approval, when the stage's turn has come."""
    locked.write_moves()
    (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
    deadline_s = orjson.loads(specs.approval).get("deadline_s") if specs.approval else None
    if deadline_s is not None:
        due_at = locked.batch.tx.now + int(deadline_s * SECOND)
        stage = locked.change(stage, due_at=due_at)
        writes = PendingWrites(locked.batch)
        writes.due(due_at, stage.key, APPROVAL, 0)
        writes.flush()


def wait_for_approval(
    locked: LockedFlows, stage: StageRow, by: str, approval: str | None, cause: str | None, trace: str | None
) -> StageRow:
    """Make a stage wait for an approval, whether or not it has begun."""
    flow = locked.flows[stage.job]
    stage = start_waiting(locked, stage, by, approval, cause, trace)
    if flow.current == stage.key:
        withdraw_tasks_of_stage(locked, stage, control=False)
        if stage.deciding is None:
            _set_deadline(locked, stage)
    locked.touch(stage)
    return locked.stages[stage.key]


def open_tasks(locked: LockedFlows, stage: StageRow) -> None:
    """Make the tasks of an open stage claimable, from the first one."""
    locked.change(stage, opened_to=0, opened_at=locked.batch.tx.now)
    continue_opening(locked, stage)


def continue_opening(locked: LockedFlows, stage: StageRow) -> None:
    stage = locked.stages[stage.key]
    flow = locked.flows[stage.job]
    locked.touch(stage)
    if stage.state in (PENDING, RUNNING) and stage.ending is None and flow.state != FLOW_PAUSED and flow.ending is None:
        release_tasks_of_stage(locked, stage)


def resume_current_stage(locked: LockedFlows, flow: FlowRow) -> None:
    """Make the tasks of a resumed flow claimable again."""
    stage = locked.current(flow)
    if stage is None or stage.state in STAGE.terminal:
        return
    if stage.deciding is not None:
        _requeue(locked, stage.deciding)
    if stage.state in (PENDING, RUNNING):
        open_tasks(locked, stage)
    locked.touch(stage)


def _requeue(locked: LockedFlows, key: int) -> None:
    writes, tx = PendingWrites(locked.batch), locked.batch.tx
    for row in tx.lock([key]):
        # An existing due row stays: a janitor may have locked it and be waiting for the flow.
        has_due_row = row.run_at > tx.now and tx.query("due_there", at=row.run_at, key=key, what=RUN, fence=row.fence)
        if row.state == QUEUED and not has_due_row and not locked.holds_back(row):
            writes.enter_queue(row)
    writes.flush()


def _decide_flow(locked: LockedFlows, flow: FlowRow) -> None:
    """End a flow that is done; else derive its state from its current stage."""
    flow = locked.flows[flow.key]
    if flow.state in FLOW.terminal:
        return
    cancelling = flow.ending == CANCELLED
    if flow.ending is not None and not flow.stages_open:
        outcome = FAILED if flow.ending == FAILED else flow_outcome(flow.roll_up, flow, cancelling)
        # A flow that was never opened has not succeeded, even if it had nothing to cancel.
        _end_flow(locked, flow, CANCELLED if cancelling and flow.state == CREATED else outcome)
    elif flow.ending is None and flow.state != CREATED and flow_is_done(flow):
        _end_flow(locked, flow, flow_outcome(flow.roll_up, flow))
    else:
        _follow_stage(locked, flow)


def _has_started(locked: LockedFlows, flow: FlowRow) -> bool:
    """Whether a task of the flow was ever started, even while the flow was paused or waiting."""
    if flow.started_at is not None:
        return True
    locked.write_moves()
    return bool(locked.batch.tx.query("any_started", job=flow.key))


def _follow_stage(locked: LockedFlows, flow: FlowRow) -> None:
    stage = locked.current(flow)
    is_waiting = stage is not None and (stage.state == WAITING or (stage.state not in STAGE.terminal and stage.stalled))
    if flow.state == WAITING and not is_waiting:
        flow = locked.move_flow(FLOW.proceed, flow)
    # A flow that was only opened has version 2: the first start of a task starts it.
    if flow.state == PENDING and flow.version > 2 and _has_started(locked, flow):
        flow = locked.move_flow(FLOW.start, flow)
    if flow.state in (PENDING, RUNNING) and is_waiting:
        assert stage is not None
        locked.move_flow(FLOW.wait, flow, detail=event_detail(stage=stage.name))


def _end_flow(locked: LockedFlows, flow: FlowRow, outcome: str) -> None:
    transition = FLOW.time_out if flow.ending == FAILED else _FLOW_ENDS[outcome]
    by, why = ENGINE, flow.ending_why
    if transition is FLOW.cancel and flow.ending_by is not None:
        by = flow.ending_by
    for hop in FLOW.path(transition, flow.state)[:-1]:
        flow = locked.move_flow(hop, flow)
    columns: dict[str, Any] = {}
    if outcome == FAILED:
        columns["error"] = event_detail(message=why or stages_failed(flow.failed, flow.stages))
    detail = event_detail(
        policy=flow.roll_up, outcome=outcome, stages=flow.stages, succeeded=flow.succeeded, partial=flow.partial,
        failed=flow.failed, cancelled=flow.cancelled, skipped=flow.skipped, ignored=flow.ignored, why=why,
    )  # fmt: skip
    flow = locked.move_flow(transition, flow, by, cause=why, detail=detail, **columns)
    if outcome in (FAILED, CANCELLED) and flow.amends:
        compensation = compensate(locked, flow)
        if compensation is not None:
            open_flow(locked, compensation)
    if flow.compensates is not None:
        note_outcome(locked, flow)


def open_flow(
    locked: LockedFlows, flow: FlowRow, by: str = ENGINE, cause: str | None = None, trace: str | None = None
) -> None:
    """Open a flow, and begin its first stage that has not ended."""
    flow = locked.move_flow(FLOW.open, flow, by, cause=cause, trace=trace)
    locked.flows_touched.add(flow.key)
    advance(locked, flow, 0)


def continue_step(locked: LockedFlows, flow: FlowRow) -> None:
    """Continue what a bounded step has left: ending stages, opening tasks."""
    for stage in locked.with_changes(locked.batch.tx.query("unended_stages", job=flow.key)):
        if stage.ending is not None:
            locked.touch(stage)
        elif stage.opened_to is not None:
            continue_opening(locked, stage)


def end_flow_early(locked: LockedFlows, flow: FlowRow, ending: str, how: str, why: str | None, by: str) -> None:
    """Mark a flow and its stages as ending. The flow ends with the last stage."""
    flow = locked.change_flow(flow, ending=ending, ending_how=how, ending_why=why, ending_by=by)
    locked.flows_touched.add(flow.key)
    for stage in locked.with_changes(locked.batch.tx.query("unended_stages", job=flow.key)):
        if stage.state not in STAGE.terminal:
            target = SKIPPED if ending == FAILED and stage.state == CREATED else ending
            end_stage_early(locked, stage, target, why or f"the flow is {ending}")
