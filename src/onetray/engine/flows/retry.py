"""Retry a flow from one of its stages, or redrive a task of a flow.

Owns which stages and tasks are copied and which are carried over. Ended jobs do not change: the new ones link to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onetray.domain.clock import SECOND
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.flow import Placed
from onetray.domain.flow_commands import RetryFlow
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, PARTIAL, SKIPPED, STAGE, SUCCEEDED, TASK
from onetray.domain.rollup import IGNORE
from onetray.domain.task import Receipt, Verdict
from onetray.engine.flows import advance
from onetray.engine.flows.create import FlowDraft, StageDraft, add_members, write_flow
from onetray.engine.pending_writes import actor
from onetray.engine.submit import Spec, spec_like
from onetray.engine.submit_keys import allocate_keys, take_singleton
from onetray.store.rows import FlowRow, MemberRow, StageRow, StageToCopy, TaskRow
from onetray.store.shown_rows import TaskDetails

if TYPE_CHECKING:
    from onetray.domain.commands import Redrive
    from onetray.engine.batch_context import BatchContext

PAGE = 10_000


def retry_flow(batch: BatchContext, c: RetryFlow, flow: FlowRow, *_: Any) -> Verdict:
    if flow.state not in FLOW.terminal:
        raise IllegalTransition(
            f"a flow that is {flow.state} has not ended: cancel it, or wait for its end, then retry it",
            **{"from": flow.state, "attempted": "retry", "allowed": list(FLOW.actions(flow.state, c.actor))},
        )
    by = actor(c.actor, c.actor_name)
    draft = _copy_flow(batch, flow, c.from_stage, by, c.cause or "retry", c.trace)[0]
    new, stages, specs = _write_and_open(batch, draft, by, c.cause, c.trace)
    flow = batch.locked.flows[new.key]
    return Verdict(Placed(
        flow.id, FLOW.entity, flow.state, flow.version, c.actor, False, tuple(s.id for s in stages),
        tuple(s.id for s in specs),
    ))  # fmt: skip


def _copy_flow(
    batch: BatchContext, flow: FlowRow, from_stage: str | None, by: str, cause: str, trace: str | None
) -> tuple[FlowDraft, dict[int, Spec]]:
    """The draft of the new flow, and the new task for each copied one, by its key. Writes nothing."""
    (old,) = batch.tx.query("flow_to_copy", key=flow.key)
    stages = batch.tx.query("stages_to_copy", job=flow.key)
    start = _first_stage_to_run(stages, from_stage, is_compensated=old.compensation is not None)
    draft = FlowDraft(
        old.ns, old.kind, 0, old.roll_up, old.sealed, old.data, old.metadata, by, old.correlation_id,
        trace or old.trace, cause, old.deadline_us, old.context, flow.key, old.compensates, priority=old.priority,
        tracestate=None if trace else old.tracestate,
    )  # fmt: skip
    copies: dict[int, Spec] = {}
    for stage in stages:
        if stage.ord < start:
            draft.stages.append(_carried_over(stage))
            continue
        if stage.carried_from is not None:
            stage = _with_origin(batch, stage, stage.carried_from)
        new = _draft_like(stage)
        new.tasks = _copy_members(batch, flow, stage.key, start, copies, by, cause, trace)
        draft.stages.append(new)
    return draft, copies


def _draft_like(stage: StageToCopy) -> StageDraft:
    return StageDraft(
        stage.name, stage.on_failure, stage.sealed, stage.takes_more, stage.gate, stage.collect, stage.condition,
        stage.compensate, stage.approval, stage.data, stage.metadata, stage.type,
    )  # fmt: skip


def _write_and_open(
    batch: BatchContext, draft: FlowDraft, by: str, cause: str | None, trace: str | None
) -> tuple[FlowRow, list[StageRow], list[Spec]]:
    if draft.compensates is None:
        allocate_keys(batch.tx, [draft])
        take_singleton(batch.tx, draft.kind, batch.tx.names.kind_name(draft.kind), draft.key)
    new, stages, specs = write_flow(batch, draft)
    advance.open_flow(batch.locked, new, by, cause, trace)
    advance.settle(batch)
    return new, stages, specs


def _with_origin(batch: BatchContext, stage: StageToCopy, carried_from: int) -> StageToCopy:
    """A carried-over stage, with the columns of the original stage, in which its tasks ran."""
    key: int | None = carried_from
    while key is not None:
        rows = batch.tx.query("stage_carried_from", key=key)
        if not rows:
            raise Conflict(
                f"stage {stage.name!r} was carried over, and the flow in which it ran was deleted: submit it anew"
            )
        stage = stage._replace(**rows[0]._asdict())
        key = stage.carried_from
    return stage


def _first_stage_to_run(stages: list[StageToCopy], from_stage: str | None, is_compensated: bool) -> int:
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


def _carried_over(stage: StageToCopy) -> StageDraft:
    """The draft of a stage that does not run again: it keeps its outcome and its result."""
    draft, has_succeeded = _draft_like(stage), stage.state in (SUCCEEDED, PARTIAL)
    draft.carried_from, draft.carried_as = stage.key, SUCCEEDED if has_succeeded else SKIPPED
    draft.result, draft.metrics, draft.gate, draft.control = stage.result, stage.metrics, 0, None
    if not has_succeeded and not stage.succeeded:
        draft.compensate = None  # Nothing of it succeeded, so there is nothing to undo.
    return draft


def _copy_members(
    batch: BatchContext, flow: FlowRow, stage: int, start: int, copies: dict[int, Spec], by: str, cause: str,
    trace: str | None,
) -> list[tuple[Spec, tuple[str, ...]]]:  # fmt: skip
    """Copies of the tasks of a stage, with their dependencies on other copied tasks."""
    first_of, names = _successions(batch, stage)
    after, keys = 0, []
    while True:
        page = batch.tx.query("members_to_copy", stage=stage, ord=start, after=after, limit=PAGE)
        for row in page:
            copies[row.key] = spec_like(row._replace(name=names.get(row.key, row.name)), flow.ns, by, cause, trace)
            keys.append(row.key)
        if len(page) < PAGE:
            break
        after = page[-1].key
    copies |= {key: copies[origin] for key, origin in first_of.items() if origin in copies}
    needs: dict[int, list[str]] = {}
    for task, needed in batch.tx.query("needs_of", keys=keys) if keys else ():
        if needed in copies:
            needs.setdefault(task, []).append(copies[needed].id)
    return [(copies[key], tuple(needs.get(key, ()))) for key in keys]


def _successions(batch: BatchContext, stage: int) -> tuple[dict[int, int], dict[int, str]]:
    """The first task of each chain of successors in a stage, by successor; and the names by first task."""
    first_of: dict[int, int] = {}
    names: dict[int, str] = {}
    for row in batch.tx.query("successors_in_stage", stage=stage):
        origin = first_of.setdefault(row.key, first_of.get(row.retry_of) or row.retry_of)
        if row.name is not None:
            names[origin] = row.name
    return first_of, names


def redrive_member(batch: BatchContext, c: Redrive, row: TaskRow) -> Verdict:
    """Run a task of a flow again: in its stage if that is open, else by a retry of the flow from that stage."""
    locked, tx = batch.locked, batch.tx
    assert row.stage is not None
    flow, stage = locked.flows[row.job], locked.stage(row.stage)
    by = actor(c.actor, c.actor_name)
    earlier = _successor(batch, row)
    if earlier is not None:
        return Verdict(earlier._replace(actor=c.actor))
    if row.control:
        return _refuse(row, f"it decides about stage {stage.name!r}: retry the flow from that stage once it has ended")
    if flow.state in FLOW.terminal:
        draft, copies = _copy_flow(batch, flow, stage.name, by, c.cause or "redrive", c.trace)
        copy = copies.get(row.key)
        if copy is None:
            return _refuse(row, "the task that spawned it would spawn it again: redrive that one")
        new = copy
        new.delay_s = c.delay_s
        _write_and_open(batch, draft, by, c.cause or "redrive", c.trace)
    elif row.state == SUCCEEDED:
        return _refuse(row, "it has succeeded, and its flow goes on: there is nothing to run again")
    elif stage.state in STAGE.terminal or stage.ending is not None or flow.ending is not None:
        return _refuse(row, f"its stage {stage.name!r} is over and its flow is not: retry the flow once it has ended")
    else:
        needs = _needs(batch, row)
        for needed in needs:
            if needed.state in TASK.terminal and needed.state != SUCCEEDED:
                return _refuse(
                    row, f"it needs {needed.name or needed.id!r}, which is {needed.state}: redrive that first"
                )
        new = _add_successor(batch, c, row, stage, flow, by, tuple(needed.id for needed in needs))
    if row.state == DEAD_LETTERED:
        tx.batch("set_successor", {"key": [row.key], "successor": [new.key]})
    return Verdict(Receipt(new.id, "queued", 1, 1, c.actor))


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


def _successor(batch: BatchContext, row: TaskRow) -> Receipt | None:
    """The task that an earlier redrive of this one created."""
    keys = []
    if row.state == DEAD_LETTERED:
        keys = [key for (key,) in batch.tx.query("lock_letter", key=row.key) if key is not None]
    keys = keys or [later.key for later in batch.tx.query("successor_in_stage", stage=row.stage, key=row.key)]
    tasks = batch.tx.query("task_by_key", key=keys[0]) if keys else []
    return receipt_of(tasks[0]) if tasks else None


def receipt_of(task: TaskDetails) -> Receipt:
    """The receipt of a repeated redrive: the state of the successor."""
    return Receipt(task.id, task.state, task.fence, task.version, repeated=True)


def _add_successor(
    batch: BatchContext, c: Redrive, row: TaskRow, stage: StageRow, flow: FlowRow, by: str, needs: tuple[str, ...]
) -> Spec:
    """Add a successor to the same stage, with the old task's name. The stage counts the old one as redriven only."""
    tx = batch.tx
    (old,) = tx.query("spec_of", key=row.key)
    spec = spec_like(old, row.ns, by, c.cause or "redrive", c.trace)
    spec.run_at, spec.context = tx.now + int(c.delay_s * SECOND), old.context
    if old.name is not None:
        tx.query("clear_task_name", key=row.key)
    counts = {"redriven": stage.redriven + 1, row.state: getattr(stage, row.state) - 1}
    if row.state in (FAILED, DEAD_LETTERED):
        counts["error_count"] = stage.error_count - 1
        batch.locked.errors.drop(row)
    batch.locked.change(stage, **counts)
    add_members(batch, flow, [(stage, (spec, needs))])
    return spec
