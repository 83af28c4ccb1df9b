"""Run what has ended again: a flow from one of its stages, or a task of a flow.

Owns what is copied and what is carried over. Nothing that has ended changes: what runs again is new, and linked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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
from onetray.engine.submit import Spec
from onetray.store.rows import FlowRow, StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.domain.commands import Redrive
    from onetray.engine.batch_context import BatchContext

PAGE = 10_000


def retry_flow(scope: BatchContext, c: RetryFlow, flow: FlowRow, *_: Any) -> Verdict:
    if flow.state not in FLOW.terminal:
        raise IllegalTransition(
            f"a flow that is {flow.state} has not ended: cancel it, or wait for its end, then retry it",
            **{"from": flow.state, "attempted": "retry", "allowed": list(FLOW.actions(flow.state, c.actor))},
        )
    by = actor(c.actor, c.actor_name)
    draft = _again(scope, flow, c.from_stage, by, c.cause or "retry", c.trace)[0]
    new, stages, specs = _submit(scope, draft, by, c.cause, c.trace)
    now = scope.family.flows[new.key]
    return Verdict(Placed(
        now.id, FLOW.entity, now.state, now.version, c.actor, False, tuple(s.id for s in stages),
        tuple(s.id for s in specs),
    ))  # fmt: skip


def _again(
    scope: BatchContext, flow: FlowRow, from_stage: str | None, by: str, cause: str, trace: str | None
) -> tuple[FlowDraft, dict[int, Spec]]:
    """What the new flow is made from, and which new task stands for which old one. Nothing is written yet."""
    tx = scope.tx
    ((ns, kind, roll_up, sealed, correlation, old_trace, data, metadata, context, deadline_us, *linked),) = tx.query(
        "flow_to_copy", key=flow.key
    )
    compensates, compensation = linked
    found = tx.query("stages_to_copy", job=flow.key)
    start = _start_at(found, from_stage, undone=compensation is not None)
    draft = FlowDraft(
        ns, kind, 0, roll_up, sealed, data, metadata, by, correlation, trace or old_trace, cause,
        deadline_us, context, flow.key, compensates,
    )  # fmt: skip
    copies: dict[int, Spec] = {}
    for key, ord_, name, state, on_failure, sealed_, takes_more, gate, collect, *rest in found:
        control, compensate, approval, data_, metadata_, result, metrics, succeeded, carried_from = rest
        if ord_ >= start and carried_from is not None:
            key, gate, control, compensate = _origin(scope, name, carried_from)
        stage = StageDraft(
            name, on_failure, sealed_, takes_more, gate, collect, control, compensate, approval, data_, metadata_
        )
        if ord_ < start:
            _carry_over(stage, key, state, result, metrics)
            if state not in (SUCCEEDED, PARTIAL) and not succeeded:
                stage.compensate = None  # It has done nothing that could be undone.
        else:
            stage.tasks = _copied(scope, flow, key, start, copies, by, cause, trace)
        draft.stages.append(stage)
    return draft, copies


def _submit(
    scope: BatchContext, draft: FlowDraft, by: str, cause: str | None, trace: str | None
) -> tuple[FlowRow, list[StageRow], list[Spec]]:
    new, stages, specs = write_flow(scope, draft)
    advance.open_flow(scope.family, new, by, cause, trace)
    advance.settle(scope)
    return new, stages, specs


def _origin(scope: BatchContext, name: str, carried_from: int) -> tuple[int, int, str | None, str | None]:
    """The stage in which the tasks of one that was carried over have run: key, gate, condition, compensation."""
    before: int | None = carried_from
    while before is not None:
        found = scope.tx.query("stage_carried_from", key=before)
        if not found:
            raise Conflict(f"stage {name!r} was carried over, and the flow in which it ran was pruned: submit it anew")
        key, before, gate, control, compensate = found[0]
    return key, gate, control, compensate


def _start_at(stages: list[tuple[Any, ...]], from_stage: str | None, undone: bool) -> int:
    """The place of the stage that is run again first: the one named, or the first that spoiled the flow.

    What has been compensated has to be done again: there is nothing of it to carry over.
    """
    if from_stage is not None:
        for _, ord_, name, *_ in stages:
            if name == from_stage:
                return int(ord_)
        raise NotFound(f"the flow has no stage {from_stage!r}", stage=from_stage)
    for _, ord_, _, state, _, _, _, _, _, _, compensate, *_ in stages if undone else ():
        if compensate is not None and state in (SUCCEEDED, PARTIAL):
            return int(ord_)
    for spoiled in ((FAILED, CANCELLED), (PARTIAL,), (SKIPPED,)):
        for _, ord_, _, state, on_failure, *_ in stages:
            if state in spoiled and on_failure != IGNORE:
                return int(ord_)
    return 1


def _carry_over(stage: StageDraft, key: int, state: str, result: str | None, metrics: str | None) -> None:
    """A stage that is not run again: it counts as it did, and what it gave is passed on."""
    stage.carried_from, stage.carried_as = key, SUCCEEDED if state in (SUCCEEDED, PARTIAL) else SKIPPED
    stage.result, stage.metrics, stage.gate, stage.control = result, metrics, 0, None


def _copied(
    scope: BatchContext, flow: FlowRow, stage: int, start: int, copies: dict[int, Spec], by: str, cause: str,
    trace: str | None,
) -> list[tuple[Spec, tuple[str, ...]]]:  # fmt: skip
    """The tasks of a stage, once more, with what they depend on among those that run again too."""
    first, names = _successions(scope, stage)
    after, keys = 0, []
    while True:
        page = scope.tx.query("members_to_copy", stage=stage, ord=start, after=after, limit=PAGE)
        for key, queue, kind, policy, priority, most, old_trace, payload, name, spawned_by in page:
            copies[key] = Spec(
                flow.ns, queue, kind, policy, most, priority, None, payload, by, None, trace or old_trace, cause, key,
                name=names.get(key, name), spawned_by=spawned_by,
            )  # fmt: skip
            keys.append(key)
        if len(page) < PAGE:
            break
        after = page[-1][0]
    copies |= {key: copies[origin] for key, origin in first.items() if origin in copies}
    needs: dict[int, list[str]] = {}
    for task, needed in scope.tx.query("needs_of", keys=keys) if keys else ():
        if needed in copies:
            needs.setdefault(task, []).append(copies[needed].id)
    return [(copies[key], tuple(needs.get(key, ()))) for key in keys]


def _successions(scope: BatchContext, stage: int) -> tuple[dict[int, int], dict[int, str]]:
    """Which task each successor in a stage goes back to; and the names that those have passed on."""
    first: dict[int, int] = {}
    names: dict[int, str] = {}
    for key, before, name in scope.tx.query("successors_in_stage", stage=stage):
        origin = first.setdefault(key, first.get(before) or before)
        if name is not None:
            names[origin] = name
    return first, names


def redrive_member(scope: BatchContext, c: Redrive, row: TaskRow) -> Verdict:
    """Run a task of a flow again: in its stage while that is open, else by a retry of the flow from there."""
    family, tx = scope.family, scope.tx
    assert row.stage is not None
    flow, stage = family.flows[row.job], family.stage(row.stage)
    by = actor(c.actor, c.actor_name)
    before = _successor(scope, row)
    if before is not None:
        return Verdict(before._replace(actor=c.actor))
    if row.control:
        return _no(row, f"it decides about stage {stage.name!r}: retry the flow from that stage once it has ended")
    if flow.state in FLOW.terminal:
        draft, copies = _again(scope, flow, stage.name, by, c.cause or "redrive", c.trace)
        found = copies.get(row.key)
        if found is None:
            return _no(row, "the task that spawned it would spawn it again: redrive that one")
        new = found
        new.delay_s = c.delay_s
        _submit(scope, draft, by, c.cause or "redrive", c.trace)
    elif row.state == SUCCEEDED:
        return _no(row, "it has succeeded, and its flow goes on: there is nothing to run again")
    elif stage.state in STAGE.terminal or stage.ending is not None or flow.ending is not None:
        return _no(row, f"its stage {stage.name!r} is over and its flow is not: retry the flow once it has ended")
    else:
        needs = _needs(scope, row)
        for needed in needs:
            if needed.state in TASK.terminal and needed.state != SUCCEEDED:
                return _no(row, f"it needs {needed.name or needed.id!r}, which is {needed.state}: redrive that first")
        new = _succeed_in_stage(scope, c, row, stage, flow, by, tuple(needed.id for needed in needs))
    if row.state == DEAD_LETTERED:
        tx.batch("set_successor", {"key": [row.key], "successor": [new.key]})
    return Verdict(Receipt(new.id, "queued", 1, 1, c.actor))


def _no(row: TaskRow, why: str) -> Verdict:
    return Verdict(error=IllegalTransition(why, **{"from": row.state, "attempted": "redrive", "allowed": []}))


class _Needed(NamedTuple):
    key: int
    stage: int
    id: str
    name: str | None
    state: str


def _needs(scope: BatchContext, row: TaskRow) -> list[_Needed]:
    """What a task depends on, as it is now: of what was redriven, the last successor."""
    found = []
    for needed in map(_Needed._make, scope.tx.query("needed_by", task=row.key)):
        while later := scope.tx.query("successor_in_stage", stage=needed.stage, key=needed.key):
            needed = _Needed._make(later[0])
        found.append(needed)
    return found


def _successor(scope: BatchContext, row: TaskRow) -> Receipt | None:
    """The task that was made in this one's place before."""
    keys = []
    if row.state == DEAD_LETTERED:
        keys = [k for (k,) in scope.tx.query("lock_letter", key=row.key) if k is not None]
    keys = keys or [k for k, *_ in scope.tx.query("successor_in_stage", stage=row.stage, key=row.key)]
    found = scope.tx.query("task_by_key", key=keys[0]) if keys else []
    return Receipt(found[0][1], found[0][6], found[0][8], found[0][7], repeated=True) if found else None


def _succeed_in_stage(
    scope: BatchContext, c: Redrive, row: TaskRow, stage: StageRow, flow: FlowRow, by: str, needs: tuple[str, ...]
) -> Spec:
    """A successor in the same stage, with the name of the old one. That is not counted as what it ended as any more."""
    family, tx = scope.family, scope.tx
    ((_, queue, kind, policy, priority, most, _, trace, payload, _, name, spawned_by),) = tx.query(
        "spec_of", key=row.key
    )
    spec = Spec(
        row.ns, queue, kind, policy, most, priority, tx.now + int(c.delay_s * SECOND), payload, by,
        trace=c.trace or trace, cause=c.cause or "redrive", retry_of=row.key, name=name, spawned_by=spawned_by,
    )  # fmt: skip
    if name is not None:
        tx.query("give_up_name", key=row.key)
    family.change(stage, redriven=stage.redriven + 1, **{row.state: getattr(stage, row.state) - 1})
    add_members(scope, flow, [(stage, (spec, needs))])
    return spec
