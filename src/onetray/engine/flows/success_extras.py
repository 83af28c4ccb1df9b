"""Extras of a success in a flow: partial, metrics, spawned tasks, the next context.

They are written in the transaction of the success, so exactly once.
"""

from __future__ import annotations

from sys import float_info
from typing import TYPE_CHECKING, Any

import orjson

from onetray.domain.checks import as_json
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput, NotFound
from onetray.domain.flow import More
from onetray.domain.lifecycle import STAGE, SUCCEEDED
from onetray.domain.task import Verdict
from onetray.engine.aliases import require_aliases
from onetray.engine.flows.contexts import find_contexts, write_context
from onetray.engine.flows.create import add_members, aliases_of
from onetray.engine.flows.dependencies import known_members, resolve
from onetray.engine.flows.stage_errors import messages_of_partial
from onetray.engine.pending_writes import event_detail
from onetray.store.rows import StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.domain.commands import Succeed
    from onetray.engine.batch_context import BatchContext


def detail(more: More | None, **facts: bool) -> str | None:
    """The payload of the success's event."""
    more = more or More()
    if not (more.partial or more.errors is not None or more.metrics is not None or facts):
        return None
    errors = None if more.errors is None else orjson.Fragment(as_json(more.errors))
    return event_detail(partial=more.partial or None, errors=errors, metrics=more.metrics, **facts)


def check_extras(batch: BatchContext, i: int, command: Succeed, row: TaskRow) -> Verdict | None:
    """The error of a success whose extras cannot be accepted, or None."""
    assert command.more is not None
    if row.stage is None:
        error = InvalidInput("more is only for tasks of a flow: this task belongs to none", field="more")
        return Verdict(error=error)
    try:
        members = _spawned_members(batch, i, row)
        known = known_members(batch, batch.locked.flows[row.job], [member for _, member in members])
        resolve([(stage.ord, member) for stage, member in members], known)
        find_contexts(batch, batch.locked.flows[row.job], (spec for _, (spec, _) in members))
        require_aliases(batch.tx, aliases_of(batch.tx, [spec for _, (spec, _) in members]))
    except (Conflict, NotFound, InvalidInput) as e:
        return Verdict(error=e)
    return None


def _spawned_members(batch: BatchContext, i: int, row: TaskRow) -> list[tuple[StageRow, Any]]:
    """The spawned tasks, each with its stage. Raises an error if a stage takes no more tasks."""
    spawned = batch.drafts.spawned.get(i, {}) if batch.drafts is not None else {}
    if batch.locked.can_only_finish(row):
        # The success counts, but spawns nothing: its stage has ended, or is ending.
        return []
    return [(_stage_to_spawn_in(batch, row, name), member) for name, members in spawned.items() for member in members]


def _stage_to_spawn_in(batch: BatchContext, row: TaskRow, name: str) -> StageRow:
    stages = batch.locked.with_changes(batch.tx.query("stage_by_name", job=row.job, name=name))
    if not stages:
        raise NotFound(f"the flow has no stage {name!r}", stage=name)
    (stage,) = stages
    spawning_stage = batch.locked.stage(row.stage or 0)
    flow = batch.locked.flows[row.job]
    is_closed = stage.state in STAGE.terminal or stage.ending is not None or flow.ending is not None
    if is_closed or (stage.started_at is not None and not stage.takes_more) or stage.ord < spawning_stage.ord:
        raise IllegalTransition(
            f"the stage {name!r} is {stage.state} and takes no tasks from this one",
            **{"from": stage.state, "attempted": "take tasks", "allowed": []},
        )
    return stage


def count_successes(batch: BatchContext, work: list[tuple[int, Succeed, TaskRow]]) -> None:
    """Count accepted successes in their stages, and apply their extras."""
    plain = []
    batch.locked.new_successes |= {row.key for _, _, row in work if row.stage is not None}
    for i, command, row in work:
        if row.stage is None:
            continue
        if command.more is not None:
            _apply_extras(batch, i, command, row)
        elif row.control:
            batch.locked.count_move(row, SUCCEEDED, command.result_json)
        else:
            plain.append(row)
    if plain:
        batch.locked.count_plain_successes(plain)


def _apply_extras(batch: BatchContext, i: int, command: Succeed, row: TaskRow) -> None:
    locked, more = batch.locked, command.more
    assert more is not None
    assert row.stage is not None
    flow = locked.flows[row.job]
    members = _spawned_members(batch, i, row)
    for _, (spec, _) in members:
        spec.spawned_by = row.key
    add_members(batch, flow, members)
    if more.context is not None:
        key = batch.tx.new_keys(1)[0]
        payload = as_json(more.context)
        write_context(batch, flow, key, payload, "run", row.key, flow.context, more.context_label)
        locked.change_flow(locked.flows[row.job], context=key)
    locked.count_move(row, SUCCEEDED, command.result_json, partly=more.partial, started=True)
    if more.partial:
        locked.add_errors(row, messages_of_partial(more.errors))
    if more.metrics:
        stage = locked.stage(row.stage)
        metrics = merge_metrics(stage.metrics, more.metrics)
        if len(metrics) <= batch.limits.result_bytes:
            locked.change(stage, metrics=metrics)


def merge_metrics(metrics: str | None, new: dict[str, Any]) -> str:
    """Numbers are added; other values replace the old ones."""
    merged = orjson.loads(metrics) if metrics else {}
    for name, value in new.items():
        can_add = _is_number(value) and _is_number(merged.get(name))
        merged[name] = _sum(merged[name], value) if can_add else value
    return orjson.dumps(merged).decode()


def _sum(a: float, b: float) -> float:
    """Within the range of JSON: a sum over 64 bits becomes a float, up to the largest one."""
    total = a + b
    if isinstance(total, int) and -(2**63) <= total < 2**64:
        return total
    return max(-float_info.max, min(float_info.max, float(total)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
