"""Retry a flow from one of its stages, or redrive a task of a flow.

Owns from where an ended flow runs again, and what a redrive refuses. Ended jobs do not change: new ones link to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onetray.domain.actions import flow_refuses
from onetray.domain.clock import run_at_us
from onetray.domain.errors import IllegalTransition, NoAttemptsLeft, NotFound
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import RetryFlow
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, PARTIAL, SKIPPED, STAGE, SUCCEEDED, TASK
from onetray.domain.rollup import IGNORE, STRICT
from onetray.domain.task import Receipt, Verdict
from onetray.engine.aliases import hand_on_aliases
from onetray.engine.flows import advance
from onetray.engine.flows.carry_over import approval_of, carry_over, outcomes_of, to_carry_over
from onetray.engine.flows.copy_flow import FlowCopy, is_undone
from onetray.engine.flows.create import add_members, write_flow
from onetray.engine.pending_writes import actor
from onetray.engine.submit import Spec, spec_like
from onetray.engine.submit_keys import allocate_keys, take_singleton
from onetray.store.copied_rows import StageToCopy
from onetray.store.rows import FlowRow, MemberRow, StageRow, TaskRow
from onetray.store.shown_rows import TaskDetails

if TYPE_CHECKING:
    from onetray.domain.commands import Redrive
    from onetray.engine.batch_context import BatchContext


def retry_flow(batch: BatchContext, c: RetryFlow, flow: FlowRow, *_: Any) -> Verdict:
    if flow.state not in FLOW.terminal:
        refused = flow_refuses(flow.ending, flow.ending_how)
        allowed = [name for name in FLOW.actions(flow.state, c.actor) if name not in refused]
        raise IllegalTransition(
            f"the flow has not ended: it is {flow.state}; cancel it, or wait for its end, then retry it",
            **{
                "from": flow.state,
                "attempted": "retry",
                "allowed": allowed,
            },
        )
    by = actor(c.actor, c.actor_name)
    copy = FlowCopy(batch, flow, by, c.cause or "retry", c.trace)
    copy.from_stage(first_stage_to_run(copy.stages, c.from_stage, is_compensated=copy.old.compensation is not None))
    new, stages, specs = _write(batch, copy)
    _open(batch, new, by, c.cause, c.trace)
    flow = batch.locked.flows[new.key]
    return Verdict(Placed(
        flow.id, FLOW.entity, flow.state, flow.version, c.actor, False, tuple(s.id for s in stages),
        tuple(s.id for s in specs),
    ))  # fmt: skip


def _write(batch: BatchContext, copy: FlowCopy) -> tuple[FlowRow, list[StageRow], list[Spec]]:
    """Write the copy of a flow, and hand on the aliases of what was copied."""
    draft, tx = copy.draft, batch.tx
    if draft.compensates is None:
        allocate_keys(tx, [draft])
        take_singleton(tx, draft.kind, tx.names.kind_name(draft.kind), draft.key)
    written = write_flow(batch, draft)
    assert draft.retry_of is not None
    hand_on_aliases(tx, {draft.retry_of: draft.key} | {key: spec.key for key, spec in copy.copies.items()})
    if copy.left_out:
        # Whoever spawns them again gives them their aliases again.
        tx.query("prune_aliases", keys=copy.left_out)
    return written


def _open(batch: BatchContext, flow: FlowRow, by: str, cause: str | None, trace: str | None) -> None:
    advance.open_flow(batch.locked, flow, by, cause, trace)
    advance.settle(batch)


def first_stage_to_run(stages: list[StageToCopy], from_stage: str | None, is_compensated: bool) -> int:
    """The place of the first stage to run again: the named one, or the first that did not succeed.

    Compensated stages run again, too: they have no effect left to carry over.
    """
    if from_stage is not None:
        for stage in stages:
            if stage.name == from_stage:
                return stage.ord
        raise NotFound(f"the flow has no stage {from_stage!r}", stage=from_stage)
    for stage in stages if is_compensated else ():
        if stage.compensate is not None and stage.state in (SUCCEEDED, PARTIAL):
            return stage.ord
    for states in ((FAILED, CANCELLED), (PARTIAL,), (SKIPPED,)):
        for stage in stages:
            if stage.state in states and stage.on_failure != IGNORE:
                return stage.ord
    return 1


def redrive_member(batch: BatchContext, c: Redrive, row: TaskRow) -> Verdict:
    """Run a task of a flow again: in its stage if that is open, else in a new flow that goes on from that stage."""
    assert row.stage is not None
    flow, stage = batch.locked.flows[row.job], batch.locked.stage(row.stage)
    earlier = _successor(batch, row)
    if earlier is not None and _was_carried_over(batch, earlier):
        return _refuse(row, f"it was carried over to a new flow as {earlier.id}: redrive that one")
    if earlier is not None:
        return Verdict(receipt_of(earlier)._replace(actor=c.actor))
    has_ended = flow.state in FLOW.terminal
    if row.control:
        return _refuse(row, f"it decides about stage {stage.name!r}: retry the flow from that stage once it has ended")
    if not has_ended and row.state == SUCCEEDED:
        return _refuse(row, "it has succeeded, and its flow goes on: there is nothing to run again")
    if not has_ended and (stage.state in STAGE.terminal or stage.ending is not None or flow.ending is not None):
        return _refuse(row, f"its stage {stage.name!r} is over and its flow is not: retry the flow once it has ended")
    needs = _needs(batch, row)
    for needed in () if has_ended and flow.roll_up == STRICT else needs:
        if needed.state in TASK.terminal and needed.state != SUCCEEDED:
            return _refuse(row, f"it needs {needed.name or needed.id!r}, which is {needed.state}: redrive that first")
    if has_ended:
        return _redrive_in_new_flow(batch, c, row, flow, stage)
    new = _add_successor(batch, c, row, stage, flow, tuple(needed.id for needed in needs))
    if row.state == DEAD_LETTERED:
        batch.tx.batch("set_successor", {"key": [row.key], "successor": [new.key]})
    return Verdict(Receipt(new.id, "queued", 1, 1, c.actor))


def _redrive_in_new_flow(batch: BatchContext, c: Redrive, row: TaskRow, flow: FlowRow, stage: StageRow) -> Verdict:
    """Retry a flow from the stage of a task. Other tasks of that stage are carried over, unless they were undone."""
    by, cause = actor(c.actor, c.actor_name), c.cause or "redrive"
    copy = FlowCopy(batch, flow, by, cause, c.trace)
    outcomes = outcomes_of(batch, stage.key)
    undone = [s.ord for s in copy.stages if copy.old.compensation is not None and s.ord <= stage.ord and is_undone(s)]
    carried = to_carry_over(outcomes, flow, row) if stage.opened_at is not None and not undone else None
    answer = approval_of(batch, stage)
    copy.from_stage(min([stage.ord, *undone]), carried, gate=int(answer is not None and not answer.is_given))
    new = copy.copies.get(row.key)
    if new is None:
        return _refuse(row, "the task that spawned it would spawn it again: redrive that one")
    new.run_at, new.attempts = run_at_us(batch.tx.now, c.run_at, c.delay_s), attempts_of_successor(c, row)
    flow, stages, _ = _write(batch, copy)
    if carried is not None:
        carry_over(batch, copy, carried, stage, stages[stage.ord - 1])
        if answer is not None and answer.is_given:
            # The tasks of the stage read it.
            batch.tx.batch("set_answer", {"key": [stages[stage.ord - 1].key], "answer": [answer.text]})
    # All of them, not only that of the task: each has its one successor in the new flow.
    copied = {row: copy.copies[key].key for key, row in outcomes.items() if key in copy.copies}
    dead = {row.key: key for row, key in copied.items() if row.state == DEAD_LETTERED}
    if dead:
        batch.tx.batch("set_successor", {"key": [*dead], "successor": [*dead.values()]})
    _open(batch, flow, by, cause, c.trace)
    return Verdict(Receipt(new.id, "queued", 1, 1, c.actor))


def attempts_of_successor(c: Redrive, row: TaskRow) -> int:
    """How many attempts of its budget the successor of a task has used up. Raises NoAttemptsLeft if it has none."""
    if not c.keep_attempts:
        return 0
    if row.attempts >= row.max_attempts:
        raise NoAttemptsLeft(
            f"the task has used {row.attempts} of {row.max_attempts} attempts: redrive it without keep_attempts",
            attempts=row.attempts,
            max_attempts=row.max_attempts,
        )
    return row.attempts


def _refuse(row: TaskRow, why: str) -> Verdict:
    return Verdict(error=IllegalTransition(why, **{"from": row.state, "attempted": "redrive", "allowed": []}))


def _needs(batch: BatchContext, row: TaskRow) -> list[MemberRow]:
    """The tasks that a task depends on. A redriven one is replaced by its last successor."""
    needs = []
    for needed in batch.tx.query("needed_by", task=row.key):
        while later := batch.tx.query("successor_in_stage", stage=needed.stage, key=needed.key):
            needed = later[0]
        needs.append(needed)
    return needs


def _was_carried_over(batch: BatchContext, task: TaskDetails) -> bool:
    """Whether a task has ended without running, as its predecessor in another flow."""
    events = batch.tx.query("outcomes_of_attempt", key=task.key, fence=1) if task.state in TASK.terminal else ()
    return any(event.type == TASK.carry_over_dead.event for event in events)


def _successor(batch: BatchContext, row: TaskRow) -> TaskDetails | None:
    """The task that an earlier redrive of this one created."""
    keys = []
    if row.state == DEAD_LETTERED:
        keys = [key for (key,) in batch.tx.query("lock_letter", key=row.key) if key is not None]
    keys = keys or [later.key for later in batch.tx.query("successor_in_stage", stage=row.stage, key=row.key)]
    tasks = batch.tx.query("task_by_key", key=keys[0]) if keys else []
    return tasks[0] if tasks else None


def receipt_of(task: TaskDetails) -> Receipt:
    """The receipt of a repeated redrive: the state of the successor."""
    return Receipt(task.id, task.state, task.fence, task.version, repeated=True)


def _add_successor(
    batch: BatchContext, c: Redrive, row: TaskRow, stage: StageRow, flow: FlowRow, needs: tuple[str, ...]
) -> Spec:
    """Add a successor to the same stage, with the old task's name. The stage counts the old one as redriven only."""
    tx = batch.tx
    (old,) = tx.query("spec_of", key=row.key)
    spec = spec_like(old, row.ns, actor(c.actor, c.actor_name), c.cause or "redrive", c.trace)
    spec.run_at, spec.attempts = run_at_us(tx.now, c.run_at, c.delay_s), attempts_of_successor(c, row)
    spec.context = old.context
    if old.name is not None:
        tx.query("clear_task_name", key=row.key)
    counts = {"redriven": stage.redriven + 1, row.state: getattr(stage, row.state) - 1}
    if row.state in (FAILED, DEAD_LETTERED):
        counts["error_count"] = stage.error_count - 1
        batch.locked.errors.drop(row)
    batch.locked.change(stage, **counts)
    add_members(batch, flow, [(stage, (spec, needs))])
    hand_on_aliases(tx, {row.key: spec.key})
    return spec
