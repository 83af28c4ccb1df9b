"""What follows for stages and flows from what happened to their tasks.

Owns the course of a flow: a stage that is done ends, the next one gets its turn, the flow ends with its last. Decides
by the counters alone (see domain/rollup.py), in the same transaction as the task's move, under the flow's lock. What is
more than a step's work is left to the janitor, with a due row that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from onetray.domain.clock import SECOND
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
    """Draw every conclusion from what the batch has done so far, and write it."""
    locked = batch.locked
    if not (locked.flows or locked.touched):
        return
    budget = locked.budget = locked.budget or [STEP]
    while locked.touched or locked.ended or locked.answers or locked.flows_touched:
        _follow_dependencies(locked)
        _take_answers(locked)
        touched, locked.touched = locked.touched, set()
        for stage in sorted((locked.stages[key] for key in touched), key=lambda s: (s.job, s.ord)):
            locked.flows_touched.add(stage.job)
            _decide(locked, stage.key, budget)
        if not (locked.touched or locked.ended or locked.answers):
            flows, locked.flows_touched = locked.flows_touched, set()
            for key in sorted(flows):
                _decide_flow(locked, locked.flows[key])
    locked.started.clear()
    locked.succeeding.clear()
    locked.save()


def _follow_dependencies(locked: LockedFlows) -> None:
    """Let go the tasks whose last dependency has succeeded; cancel those of which one never will."""
    tx = locked.batch.tx
    while locked.ended:
        ended, locked.ended = locked.ended, []
        how = {row.key: state for row, state in ended if locked.flows[row.job].chained}
        found = sorted(tx.query("dependents", keys=sorted(how)), key=lambda row: row.task) if how else []
        if not found:
            continue
        rows = {row.key: row for row in tx.lock(sorted({task for _, task, _ in found}))}
        locked.load(list(rows.values()))
        writes = PendingWrites(locked.batch)
        met: dict[int, int] = {}
        for needs, task, id_ in found:
            row = rows[task]
            if row.state != QUEUED:
                continue
            if how[needs] == SUCCEEDED:
                met[task] = met.get(task, 0) + 1
            else:
                rows[task] = locked.batch.rows[task] = writes.add(
                    TASK.cancel,
                    row,
                    ENGINE,
                    cause=DEPENDENCY_FAILED,
                    detail=event_detail(dependency=id_, was=how[needs]),
                )
        if met:
            tx.batch("meet", {"key": list(met), "met": list(met.values())})
        for task, n in met.items():
            row = rows[task] = rows[task]._replace(unmet=rows[task].unmet - n)
            locked.batch.rows[task] = row
            if row.state == QUEUED and row.unmet == 0 and not locked.holds_back(row):
                writes.enter_queue(row)
        writes.flush()


def _take_answers(locked: LockedFlows) -> None:
    """A stage's condition was decided: open it, or skip it, or fail it when there is no answer."""
    answers, locked.answers = locked.answers, []
    for row, state, result in answers:
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
            wind_down(locked, stage, FAILED, f"its condition could not be decided: the control task is {state}")
        elif not answer:
            locked.stage_ends[stage.key] = STAGE.skip, ENGINE, "its condition is not met", None
            wind_down(locked, stage, SKIPPED, "its condition is not met")
        else:
            turn(locked, stage, answer=answer)


def _decide(locked: LockedFlows, key: int, budget: list[int]) -> None:
    stage = locked.stages[key]
    flow = locked.flows[stage.job]
    if stage.state in STAGE.terminal:
        return
    if key in locked.started and stage.state == PENDING:
        stage = _start(locked, stage)
    # One that waits for its turn fails in its turn: what comes after it is stopped then.
    has_turn = stage.state != CREATED and flow.current == stage.key
    if stage.ending is None and has_turn and fails_at_once(flow.roll_up, stage):
        stage = locked.change(stage, ending=FAILED, ending_why="a task failed for good")
    if stage.ending is not None:
        _end_early(locked, stage, budget)
    elif stage.state in (PENDING, RUNNING) and stage_is_done(stage):
        _end(locked, stage, stage_outcome(flow.roll_up, stage))


def _start(locked: LockedFlows, stage: StageRow) -> StageRow:
    stage = locked.move_stage(STAGE.start, stage)
    flow = locked.flows[stage.job]
    if flow.state == PENDING:
        locked.move_flow(FLOW.start, flow)
    return stage


def wind_down(locked: LockedFlows, stage: StageRow, target: str, why: str) -> None:
    """Have a stage ended in this way as soon as no task of it waits any more."""
    locked.change(stage, ending=target, ending_why=why)
    locked.touch(stage)


def _end_early(locked: LockedFlows, stage: StageRow, budget: list[int]) -> None:
    """Cancel what is left of a stage, a step's worth at a time, then end it."""
    flow = locked.flows[stage.job]
    if not cancel_tasks_of_stage(locked, flow, stage, budget):
        # More is left than this step may do. Nothing of it can be claimed meanwhile.
        withdraw_tasks_of_stage(locked, stage)
        PendingWrites(locked.batch).due_now(flow.key, CASCADE)
        return
    stage = locked.stages[stage.key]
    if flow.ending_how == "soft" and stage.open:
        return  # Its workers were asked to stop: the last of them ends it.
    assert stage.ending is not None
    outcome = stage.ending
    if flow.ending == CANCELLED and stage.state in (PENDING, RUNNING):
        outcome = stage_outcome(flow.roll_up, stage, cancelling=True)
    if outcome == FAILED and stage.state == CREATED:
        stage = locked.move_stage(STAGE.open, stage, cause=stage.ending_why)
    _end(locked, stage, outcome)


def _end(locked: LockedFlows, stage: StageRow, outcome: str) -> None:
    """End a stage, count it, and give the next one its turn."""
    flow = locked.flows[stage.job]
    transition, by, cause, trace = stage_end(locked, stage, outcome)
    if stage.state not in transition.sources:
        for hop in STAGE.path(transition, stage.state)[:-1]:
            assert hop is STAGE.start
            stage = _start(locked, stage)
    columns = columns_of_end(locked, stage, transition)
    why = cause or stage.ending_why
    detail = decision(flow, stage, outcome, why)
    locked.move_stage(transition, stage, by, cause=why, trace=trace, detail=detail, **columns)
    flow = locked.flows[stage.job]
    # What is ignored is a stage's own failure, not that its flow was cancelled.
    count = outcome if stage.ending == outcome == CANCELLED else counts_as(outcome, stage.on_failure)
    flow = locked.change_flow(flow, stages_open=flow.stages_open - 1, **{count: getattr(flow, count) + 1})
    locked.flows_touched.add(flow.key)
    if flow.ending is not None or flow.current != stage.key:
        return
    if goes_on(outcome, stage.on_failure):
        advance(locked, flow, stage.ord)
    else:
        _stop(locked, flow, stage, outcome)


def _stop(locked: LockedFlows, flow: FlowRow, stage: StageRow, outcome: str) -> None:
    """What comes after a stage that ended badly is skipped, and nothing more is waited for."""
    locked.change_flow(flow, sealed=SEALED)
    for later in locked.remember(locked.batch.tx.query("unended_stages", job=flow.key)):
        if later.state not in STAGE.terminal and later.ord > stage.ord:
            wind_down(locked, later, SKIPPED, f"stage {stage.name!r} is {outcome}")


def advance(locked: LockedFlows, flow: FlowRow, ord_: int) -> None:
    """Give the next stage its turn."""
    found = locked.remember(locked.batch.tx.query("next_stage", job=flow.key, ord=ord_))
    # One that was ended in this transaction is still open in the database.
    while found and found[0].state in STAGE.terminal:
        found = locked.remember(locked.batch.tx.query("next_stage", job=flow.key, ord=found[0].ord))
    if found:
        locked.change_flow(flow, current=found[0].key)
        locked.flows_touched.add(flow.key)
        turn(locked, found[0])


def turn(locked: LockedFlows, stage: StageRow, answer: Any = None) -> None:
    """The stages before it have ended: open it, unless somebody or something has to be asked first."""
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
        stage = ask(locked, stage)
        _set_deadline(locked, stage)
    elif stage.sealed == SEALED and not stage.total:
        locked.stage_ends[stage.key] = STAGE.skip, ENGINE, "it has no tasks", None
        wind_down(locked, stage, SKIPPED, "it has no tasks")
    else:
        detail = event_detail(condition=answer) if answer is not None else None
        locked.move_stage(STAGE.open, stage, detail=detail)
        let_go(locked, stage)


def ask(
    locked: LockedFlows,
    stage: StageRow,
    by: str = ENGINE,
    approval: str | None = None,
    cause: str | None = None,
    trace: str | None = None,
) -> StageRow:
    """Have a stage wait for somebody."""
    if approval is None:
        (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
        approval = specs.approval
    return locked.move_stage(
        STAGE.wait, stage, by, cause=cause, trace=trace, approval=approval,
        detail=event_detail(approval=orjson.Fragment(approval)) if approval else None,
    )  # fmt: skip


def _set_deadline(locked: LockedFlows, stage: StageRow) -> None:
    """Its time to be approved in begins when it gets its turn."""
    locked.write_moves()
    (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
    deadline_s = orjson.loads(specs.approval).get("deadline_s") if specs.approval else None
    if deadline_s is not None:
        due_at = locked.batch.tx.now + int(deadline_s * SECOND)
        stage = locked.change(stage, due_at=due_at)
        writes = PendingWrites(locked.batch)
        writes.due(due_at, stage.key, APPROVAL, 0)
        writes.flush()


def wait_here(
    locked: LockedFlows, stage: StageRow, by: str, approval: str | None, cause: str | None, trace: str | None
) -> StageRow:
    """Hold a stage that has begun, or is to begin, until somebody approves it."""
    flow = locked.flows[stage.job]
    stage = ask(locked, stage, by, approval, cause, trace)
    if flow.current == stage.key:
        withdraw_tasks_of_stage(locked, stage, control=False)
        if stage.deciding is None:
            _set_deadline(locked, stage)
    locked.touch(stage)
    return locked.stages[stage.key]


def let_go(locked: LockedFlows, stage: StageRow) -> None:
    """Make the tasks of an open stage claimable, from its first."""
    locked.change(stage, opened_to=0, opened_at=locked.batch.tx.now)
    go_on_opening(locked, stage)


def go_on_opening(locked: LockedFlows, stage: StageRow) -> None:
    stage = locked.stages[stage.key]
    flow = locked.flows[stage.job]
    locked.touch(stage)
    if stage.state in (PENDING, RUNNING) and stage.ending is None and flow.state != FLOW_PAUSED and flow.ending is None:
        release_tasks_of_stage(locked, stage)


def resume_here(locked: LockedFlows, flow: FlowRow) -> None:
    """Make what a paused flow held back claimable again."""
    stage = locked.current(flow)
    if stage is None or stage.state in STAGE.terminal:
        return
    if stage.deciding is not None:
        _requeue(locked, stage.deciding)
    if stage.state in (PENDING, RUNNING):
        let_go(locked, stage)
    locked.touch(stage)


def _requeue(locked: LockedFlows, key: int) -> None:
    writes, tx = PendingWrites(locked.batch), locked.batch.tx
    for row in tx.lock([key]):
        # A due row that is there is left alone: a janitor may hold it, and wait for the flow.
        timed = row.run_at > tx.now and tx.query("due_there", at=row.run_at, key=key, what=RUN, fence=row.fence)
        if row.state == QUEUED and not timed and not locked.holds_back(row):
            writes.enter_queue(row)
    writes.flush()


def _decide_flow(locked: LockedFlows, flow: FlowRow) -> None:
    """End a flow that is done; else let its state follow its current stage."""
    flow = locked.flows[flow.key]
    if flow.state in FLOW.terminal:
        return
    cancelling = flow.ending == CANCELLED
    if flow.ending is not None and not flow.stages_open:
        outcome = FAILED if flow.ending == FAILED else flow_outcome(flow.roll_up, flow, cancelling)
        # One that was never opened has not succeeded, even if nothing was left of it to cancel.
        _end_flow(locked, flow, CANCELLED if cancelling and flow.state == CREATED else outcome)
    elif flow.ending is None and flow.state != CREATED and flow_is_done(flow):
        _end_flow(locked, flow, flow_outcome(flow.roll_up, flow))
    else:
        _follow_stage(locked, flow)


def _has_started(locked: LockedFlows, flow: FlowRow) -> bool:
    """Whether a task of it was ever started, also while it was paused or waiting."""
    if flow.started_at is not None:
        return True
    locked.write_moves()
    return bool(locked.batch.tx.query("any_started", job=flow.key))


def _follow_stage(locked: LockedFlows, flow: FlowRow) -> None:
    stage = locked.current(flow)
    waits = stage is not None and (stage.state == WAITING or (stage.state not in STAGE.terminal and stage.stalled))
    if flow.state == WAITING and not waits:
        flow = locked.move_flow(FLOW.proceed, flow)
    # One that has only been opened has not begun: the first start takes it along.
    if flow.state == PENDING and flow.version > 2 and _has_started(locked, flow):
        flow = locked.move_flow(FLOW.start, flow)
    if flow.state in (PENDING, RUNNING) and waits:
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
        columns["error"] = event_detail(message=why or f"{flow.failed} of {flow.stages} stages failed")
    detail = event_detail(
        policy=flow.roll_up, outcome=outcome, stages=flow.stages, succeeded=flow.succeeded, partial=flow.partial,
        failed=flow.failed, cancelled=flow.cancelled, skipped=flow.skipped, ignored=flow.ignored, why=why,
    )  # fmt: skip
    flow = locked.move_flow(transition, flow, by, cause=why, detail=detail, **columns)
    if outcome in (FAILED, CANCELLED) and flow.amends:
        undoing = compensate(locked, flow)
        if undoing is not None:
            open_flow(locked, undoing)
    if flow.compensates is not None:
        note_outcome(locked, flow)


def open_flow(
    locked: LockedFlows, flow: FlowRow, by: str = ENGINE, cause: str | None = None, trace: str | None = None
) -> None:
    """Let a flow begin: its first stage that has not ended gets its turn."""
    flow = locked.move_flow(FLOW.open, flow, by, cause=cause, trace=trace)
    locked.flows_touched.add(flow.key)
    advance(locked, flow, 0)


def step(locked: LockedFlows, flow: FlowRow) -> None:
    """Go on with what was left over when a step was full."""
    for stage in locked.remember(locked.batch.tx.query("unended_stages", job=flow.key)):
        if stage.ending is not None:
            locked.touch(stage)
        elif stage.opened_to is not None:
            go_on_opening(locked, stage)


def end_flow_early(locked: LockedFlows, flow: FlowRow, ending: str, how: str, why: str | None, by: str) -> None:
    """Have a flow ended: its stages first, and the flow with the last of them."""
    flow = locked.change_flow(flow, ending=ending, ending_how=how, ending_why=why, ending_by=by)
    locked.flows_touched.add(flow.key)
    for stage in locked.remember(locked.batch.tx.query("unended_stages", job=flow.key)):
        if stage.state not in STAGE.terminal:
            target = SKIPPED if ending == FAILED and stage.state == CREATED else ending
            wind_down(locked, stage, target, why or f"the flow is {ending}")
