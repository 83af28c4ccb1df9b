"""Run what has ended again: a flow from one of its stages, or a task of a flow.

Owns what is copied and what is carried over. Nothing that has ended changes: what runs again is new, and linked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onetray.clock import SECOND
from onetray.engine import course
from onetray.engine.members import FlowDraft, StageDraft, write_flow
from onetray.engine.moves import actor
from onetray.engine.submit import Spec, write_tasks
from onetray.errors import IllegalTransition, NotFound
from onetray.flowcommands import RetryFlow
from onetray.flowmodel import FlowRow, Placed, StageRow
from onetray.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, PARTIAL, SKIPPED, STAGE, SUCCEEDED
from onetray.model import Receipt, Row, Verdict
from onetray.rollup import IGNORE

if TYPE_CHECKING:
    from onetray.commands import Redrive
    from onetray.engine.scope import Scope

PAGE = 10_000


def retry_flow(scope: Scope, c: RetryFlow, flow: FlowRow, *_: Any) -> Verdict:
    if flow.state not in FLOW.terminal:
        raise IllegalTransition(
            f"a flow that is {flow.state} has not ended: cancel it, or wait for its end, then retry it",
            **{"from": flow.state, "attempted": "retry", "allowed": list(FLOW.actions(flow.state, c.actor))},
        )
    again = _again(scope, flow, c.from_stage, actor(c.actor, c.actor_name), c.cause, c.trace)
    new, stages, specs = again[:3]
    course.settle(scope)
    now = scope.family.flows[new.key]
    return Verdict(Placed(
        now.id, FLOW.entity, now.state, now.version, c.actor, False, tuple(s.id for s in stages),
        tuple(s.id for s in specs),
    ))  # fmt: skip


def _again(
    scope: Scope, flow: FlowRow, from_stage: str | None, by: str, cause: str | None, trace: str | None
) -> tuple[FlowRow, list[StageRow], list[Spec], dict[int, Spec]]:
    """Write and open the new flow. Also answers which new task stands for which old one."""
    tx = scope.tx
    ((ns, kind, roll_up, sealed, correlation, old_trace, data, metadata, context, deadline_us, compensates),) = (
        tx.query("flow_to_copy", key=flow.key)
    )
    found = tx.query("stages_to_copy", job=flow.key)
    start = _start_at(found, from_stage)
    draft = FlowDraft(
        ns, kind, 0, roll_up, sealed, data, metadata, by, correlation, trace or old_trace, cause or "retry",
        deadline_us, context, flow.key, compensates,
    )  # fmt: skip
    copies: dict[int, Spec] = {}
    for key, ord_, name, state, on_failure, sealed_, takes_more, gate, collect, *rest in found:
        control, compensate, approval, data_, metadata_, result, metrics, _ = rest
        stage = StageDraft(
            name, on_failure, sealed_, takes_more, gate, collect, control, compensate, approval, data_, metadata_
        )
        if ord_ < start:
            _carry_over(stage, key, state, result, metrics)
        else:
            stage.tasks = _copied(scope, flow, key, start, copies, by)
        draft.stages.append(stage)
    new, stages, specs = write_flow(scope, draft)
    course.open_flow(scope.family, new, by, cause, trace)
    return new, stages, specs, copies


def _start_at(stages: list[tuple[Any, ...]], from_stage: str | None) -> int:
    """The place of the stage that is run again first: the one named, or the first that spoiled the flow."""
    if from_stage is not None:
        for _, ord_, name, *_ in stages:
            if name == from_stage:
                return int(ord_)
        raise NotFound(f"the flow has no stage {from_stage!r}", stage=from_stage)
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
    scope: Scope, flow: FlowRow, stage: int, start: int, copies: dict[int, Spec], by: str
) -> list[tuple[Spec, tuple[str, ...]]]:
    """The tasks of a stage, once more, with what they depend on among those that run again too."""
    after, keys = 0, []
    while True:
        page = scope.tx.query("members_to_copy", stage=stage, ord=start, after=after, limit=PAGE)
        for key, queue, kind, policy, priority, most, trace, payload, name in page:
            copies[key] = Spec(
                flow.ns, queue, kind, policy, most, priority, None, payload, by, None, trace, "retry", key, name=name
            )
            keys.append(key)
        if len(page) < PAGE:
            break
        after = page[-1][0]
    needs: dict[int, list[str]] = {}
    for task, needed in scope.tx.query("needs_of", keys=keys) if keys else ():
        if needed in copies:
            needs.setdefault(task, []).append(copies[needed].id)
    return [(copies[key], tuple(needs.get(key, ()))) for key in keys]


def redrive_member(scope: Scope, c: Redrive, row: Row) -> Verdict:
    """Run a task of a flow again: in its stage while that is open, else by a retry of the flow from there."""
    family, tx = scope.family, scope.tx
    assert row.stage is not None
    flow, stage = family.flows[row.job], family.stage(row.stage)
    by = actor(c.actor, c.actor_name)
    before = _successor(scope, row)
    if before is not None:
        return Verdict(before._replace(actor=c.actor))
    if flow.state in FLOW.terminal:
        *_, copies = _again(scope, flow, stage.name, by, c.cause or "redrive", c.trace)
        course.settle(scope)
        new = copies.get(row.key)
    elif row.state == SUCCEEDED:
        return Verdict(
            error=IllegalTransition(
                "it has succeeded, and its flow goes on: there is nothing to run again",
                **{"from": row.state, "attempted": "redrive", "allowed": []},
            )
        )
    elif stage.state in STAGE.terminal or stage.ending is not None or flow.ending is not None or row.control:
        return Verdict(
            error=IllegalTransition(
                f"its stage {stage.name!r} is over and its flow is not: retry the flow once it has ended",
                **{"from": row.state, "attempted": "redrive", "allowed": []},
            )
        )
    else:
        new = _succeed_in_stage(scope, c, row, stage, flow, by)
    if new is None:
        return Verdict(error=NotFound("the task is run again by the one that spawned it", task=row.key))
    if row.state == DEAD_LETTERED:
        tx.batch("set_successor", {"key": [row.key], "successor": [new.key]})
    return Verdict(Receipt(new.id, "queued", 1, 1, c.actor))


def _successor(scope: Scope, row: Row) -> Receipt | None:
    """The task that was made in this one's place before."""
    keys = []
    if row.state == DEAD_LETTERED:
        keys = [k for (k,) in scope.tx.query("lock_letter", key=row.key) if k is not None]
    keys = keys or [k for (k,) in scope.tx.query("successor_in_stage", stage=row.stage, key=row.key)]
    found = scope.tx.query("task_by_key", key=keys[0]) if keys else []
    return Receipt(found[0][1], found[0][6], found[0][8], found[0][7], repeated=True) if found else None


def _succeed_in_stage(scope: Scope, c: Redrive, row: Row, stage: StageRow, flow: FlowRow, by: str) -> Spec:
    """A successor in the same stage. The old one is not counted as what it ended as any more."""
    family, tx = scope.family, scope.tx
    ((_, queue, kind, policy, priority, most, _, trace, payload, _),) = tx.query("spec_of", key=row.key)
    spec = Spec(
        row.ns, queue, kind, policy, most, priority, tx.now + int(c.delay_s * SECOND), payload, by, flow.correlation_id,
        c.trace or trace, c.cause or "redrive", row.key, job=flow.key, stage=stage.key, context=flow.context,
    )  # fmt: skip
    family.change(
        stage, total=stage.total + 1, open=stage.open + 1, redriven=stage.redriven + 1,
        **{row.state: getattr(stage, row.state) - 1},
    )  # fmt: skip
    family.touch(family.stages[stage.key])
    family.write_moves()
    write_tasks(scope, [spec])
    return spec
