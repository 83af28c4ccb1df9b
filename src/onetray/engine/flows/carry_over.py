"""Carry over tasks of a redriven stage: those that have ended well enough do not run again in the new flow.

Owns which tasks these are, and their moves. A task that is carried over is copied with its outcome: later stages and
tasks that depend on it find its result, even after the old flow is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, SUCCEEDED, TASK
from onetray.domain.machine import USER
from onetray.domain.rollup import STRICT
from onetray.engine.flows.copy_flow import FlowCopy, successions
from onetray.engine.flows.stage_errors import messages_of_partial
from onetray.engine.flows.success_extras import merge_metrics
from onetray.engine.pending_writes import ENGINE, PendingWrites, actor, event_detail
from onetray.store.explain_rows import SpawnerRow
from onetray.store.rows import FlowRow, MemberOutcomeRow, StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

CARRIED_OVER = "carried over"
_MOVES = {
    SUCCEEDED: TASK.carry_over, FAILED: TASK.carry_over_failed, DEAD_LETTERED: TASK.carry_over_dead,
    CANCELLED: TASK.cancel,
}  # fmt: skip
Outcomes = dict[int, MemberOutcomeRow]
"""How tasks of a stage ended, by key; of a task that was redriven in its stage, how its last successor did."""


class Answer(NamedTuple):
    """How somebody answered to a stage that waited for approval."""

    is_given: bool
    text: str


def approval_of(batch: BatchContext, stage: StageRow) -> Answer | None:
    (specs,) = batch.tx.query("specs_of_stage", key=stage.key)
    return None if specs.answer is None else Answer(orjson.loads(specs.answer)["verdict"] == "approved", specs.answer)


def outcomes_of(batch: BatchContext, stage: int) -> Outcomes:
    first_of, _ = successions(batch, stage)
    # In the order of keys: of a chain, the last one stays.
    rows = batch.tx.query("outcomes_of_members", stage=stage, after=0, cancelled=CANCELLED)
    return {first_of.get(row.key, row.key): row for row in rows}


def to_carry_over(outcomes: Outcomes, flow: FlowRow, redriven: TaskRow) -> Outcomes:
    """The tasks that do not run again with a redriven one of their stage."""
    return {key: row for key, row in outcomes.items() if row.key != redriven.key and stays(row, flow.roll_up)}


def stays(row: MemberOutcomeRow | SpawnerRow, roll_up: str) -> bool:
    """Whether a task does not run again with another one of its stage."""
    if row.state in (FAILED, DEAD_LETTERED):
        # In a strict stage one failure fails it: to redrive one task alone could not help.
        return roll_up != STRICT
    if row.state == CANCELLED:
        # By a user. What the engine has cancelled, because another task failed, never had its turn.
        return row.cancel_at is not None or (row.ended_by or "").startswith(actor(USER, ""))
    return row.state == SUCCEEDED


def carry_over(batch: BatchContext, copy: FlowCopy, carried: Outcomes, old: StageRow, new: StageRow) -> None:
    """End the copies of the tasks that are carried over, before their flow is opened."""
    new_keys = {copy.copies[key].key: row for key, row in carried.items() if key in copy.copies}
    told = _told_by_successes(batch, old, [row.key for row in new_keys.values() if row.state == SUCCEEDED])
    writes = PendingWrites(batch)
    letters: list[tuple[int, int]] = []
    for row in batch.tx.lock(sorted(new_keys)) if new_keys else ():
        outcome = new_keys[row.key]
        more = told.get(outcome.key, {})
        _add_move(writes, row, outcome, more)
        if more:
            _count_more(batch, row, new.key, more)
        if outcome.state == DEAD_LETTERED:
            letters.append((row.key, outcome.key))
    writes.flush()
    if letters:
        batch.tx.batch("copy_letters", {"key": [key for key, _ in letters], "task": [old for _, old in letters]})


def _add_move(writes: PendingWrites, row: TaskRow, outcome: MemberOutcomeRow, more: dict[str, Any]) -> None:
    columns: dict[str, Any] = {}
    if outcome.state != CANCELLED:
        columns = {"attempts": outcome.attempts}
        columns |= {"carried_from": outcome.key} if outcome.state == SUCCEEDED else {"error": outcome.error}
    detail = event_detail(carried_from=outcome.id, **more)
    writes.add(_MOVES[outcome.state], row, ENGINE, cause=CARRIED_OVER, detail=detail, **columns)


def _told_by_successes(batch: BatchContext, stage: StageRow, keys: list[int]) -> dict[int, dict[str, Any]]:
    """What tasks reported with their success besides the result, by key. It is in their events."""
    if not keys or not (stage.partly or stage.metrics):
        return {}
    rows = batch.tx.query("told_by_successes", keys=keys, succeeded=SUCCEEDED)
    facts = ((key, orjson.loads(payload)) for key, payload in rows)
    return {key: {n: told[n] for n in ("partial", "errors", "metrics") if n in told} for key, told in facts}


def _count_more(batch: BatchContext, row: TaskRow, stage: int, more: dict[str, Any]) -> None:
    locked = batch.locked
    if more.get("partial"):
        locked.change(locked.stages[stage], partly=locked.stages[stage].partly + 1)
        locked.add_errors(row, messages_of_partial(more.get("errors")))
    if more.get("metrics"):
        metrics = merge_metrics(locked.stages[stage].metrics, more["metrics"])
        if len(metrics) <= batch.limits.result_bytes:
            locked.change(locked.stages[stage], metrics=metrics)
