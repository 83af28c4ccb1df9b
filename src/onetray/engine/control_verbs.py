"""Commands about a task from users and the system: resume, cancel, redrive, set the priority, reschedule.

Owns the effect of each in each state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetray.domain.clock import SECOND, run_at_us
from onetray.domain.commands import Cancel, Control, Redrive, Reschedule, Resume, SetMetadata, SetPriority
from onetray.domain.errors import Conflict, NotFound
from onetray.domain.lifecycle import DEAD_LETTERED, HELD, OPEN, PAUSED, QUEUED, TASK
from onetray.domain.task import Receipt, Verdict
from onetray.engine.aliases import hand_on_aliases
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.retry import attempts_of_successor, receipt_of, redrive_member
from onetray.engine.holding import illegal
from onetray.engine.pending_writes import CANCEL, RESCHEDULED, PendingWrites, actor, event_detail, reopening
from onetray.engine.submit import optional_text_of, spec_like, write_tasks
from onetray.store.rows import TaskRow


def actor_of(command: Control) -> str:
    return actor(command.actor, command.actor_name)


def accept_control(command: Control, row: TaskRow, repeated: bool = False) -> Verdict:
    return Verdict(Receipt(None, row.state, row.fence, row.version, command.actor, repeated))


def decide_controls(
    batch: BatchContext,
    work: list[tuple[int, Any, TaskRow]],
    decide: Callable[[BatchContext, PendingWrites, Any, TaskRow], Verdict],
) -> None:
    writes = PendingWrites(batch)
    for i, command, row in work:
        batch.answer(i, decide(batch, writes, command, row))
    writes.flush()


def resume(batch: BatchContext, work: list[tuple[int, Resume, TaskRow]]) -> None:
    decide_controls(batch, work, _resume)


def _resume(batch: BatchContext, writes: PendingWrites, command: Resume, row: TaskRow) -> Verdict:
    if row.state not in PAUSED:
        return Verdict(error=illegal(row, "resume", command.actor, batch.tx.query))
    moved = writes.add(
        TASK.resume, row, actor_of(command), cause=command.cause, trace=command.trace, input=command.input_json,
        run_at=batch.tx.now, detail=reopening(row, batch.tx.now, answered=command.input_json is not None),
    )  # fmt: skip
    return accept_control(command, batch.update_row(moved))


def cancel(batch: BatchContext, work: list[tuple[int, Cancel, TaskRow]]) -> None:
    decide_controls(batch, work, _cancel)


def _cancel(batch: BatchContext, writes: PendingWrites, command: Cancel, row: TaskRow) -> Verdict:
    if row.state not in OPEN:
        return Verdict(error=illegal(row, "cancel", command.actor, batch.tx.query))
    if command.hard or row.state not in HELD:
        detail = event_detail(owner=row.owner, lease_expires_at=row.lease_expires_at) if row.owner else None
        moved = writes.add(TASK.cancel, row, actor_of(command), cause=command.cause, trace=command.trace, detail=detail)
        return accept_control(command, batch.update_row(moved))
    if row.cancel_at is not None:
        return accept_control(command, row, repeated=True)
    grace_s = batch.policy(row).cancel_grace_s if command.grace_s is None else command.grace_s
    writes.put("set_cancel_at", key=row.key, at=batch.tx.now)
    writes.due(batch.tx.now + int(grace_s * SECOND), row.key, CANCEL, row.fence)
    writes.note(
        row, "task.cancel_requested", actor_of(command), cause=command.cause, trace=command.trace,
        payload=event_detail(grace_s=grace_s),
    )  # fmt: skip
    return accept_control(command, batch.update_row(row._replace(cancel_at=batch.tx.now)))


def set_priority(batch: BatchContext, work: list[tuple[int, SetPriority, TaskRow]]) -> None:
    """Change priorities. The ready row of a queued task is rewritten under the task's lock."""
    writes = PendingWrites(batch)
    changed = []
    for i, command, row in work:
        if row.state not in OPEN:
            batch.answer(i, Verdict(error=illegal(row, "set_priority", command.actor, batch.tx.query)))
        elif row.priority == command.priority:
            batch.answer(i, accept_control(command, row, repeated=True))
        else:
            changed.append((command, row))
            batch.answer(i, accept_control(command, batch.update_row(row._replace(priority=command.priority))))
    ready = _delete_ready(batch, [row for _, row in changed])
    for command, row in changed:
        writes.put("set_priority", key=row.key, priority=command.priority)
        if row.key in ready:
            writes.put("insert_ready", queue=row.line, rank=-command.priority, key=row.key, kind=row.kind)
        writes.note(
            row, "task.priority_set", actor_of(command), cause=command.cause, trace=command.trace,
            payload=event_detail(was=row.priority, priority=command.priority),
        )  # fmt: skip
    writes.flush()


def set_metadata(batch: BatchContext, work: list[tuple[int, SetMetadata, TaskRow]]) -> None:
    decide_controls(batch, work, _set_metadata)


def _set_metadata(batch: BatchContext, writes: PendingWrites, command: SetMetadata, row: TaskRow) -> Verdict:
    writes.put("set_metadata", key=row.key, metadata=optional_text_of(command.metadata))
    writes.note(
        row, "task.metadata_set", actor_of(command), cause=command.cause, trace=command.trace, payload=None
    )  # fmt: skip
    return accept_control(command, row)


def reschedule(batch: BatchContext, work: list[tuple[int, Reschedule, TaskRow]]) -> None:
    writes = PendingWrites(batch)
    changed = []
    for i, command, row in work:
        if row.state != QUEUED:
            batch.answer(i, Verdict(error=illegal(row, "reschedule", command.actor, batch.tx.query)))
            continue
        # A time in the past means now: the queue TTL is measured from it.
        run_at = max(batch.tx.now, run_at_us(batch.tx.now, command.run_at, command.delay_s))
        rescheduled = row._replace(run_at=run_at)
        changed.append((command, rescheduled, row))
        batch.answer(i, accept_control(command, batch.update_row(rescheduled)))
    _delete_ready(batch, [row for _, _, row in changed])
    for command, rescheduled, row in changed:
        writes.put("set_run_at", key=row.key, run_at=rescheduled.run_at)
        if row.stage is None or not batch.locked.holds_back(rescheduled):
            writes.enter_queue(rescheduled)
        writes.note(
            row, RESCHEDULED, actor_of(command), cause=command.cause, trace=command.trace,
            payload=event_detail(was=row.run_at, run_at=rescheduled.run_at),
        )  # fmt: skip
    writes.flush()


def _delete_ready(batch: BatchContext, rows: list[TaskRow]) -> set[int]:
    """Delete the ready rows of these tasks. Returns the keys of those that had one."""
    queued = [row for row in rows if row.state == QUEUED]
    if not queued:
        return set()
    columns = {
        "queue": [row.line for row in queued],
        "rank": [-row.priority for row in queued],
        "key": [row.key for row in queued],
        "kind": [row.kind for row in queued],
    }
    return {key for (key,) in batch.tx.batch("take_ready", columns)}


def redrive(batch: BatchContext, work: list[tuple[int, Redrive, TaskRow]]) -> None:
    for i, command, row in work:
        try:
            verdict = _redrive(batch, command, row)
        except (Conflict, NotFound) as e:
            # These are raised before anything is written. Any other error rolls the transaction back.
            verdict = Verdict(error=e)
        batch.answer(i, verdict)


def _redrive(batch: BatchContext, command: Redrive, row: TaskRow) -> Verdict:
    """Submit the same work as a new job. A dead letter has one successor: a repeated redrive returns it."""
    tx = batch.tx
    if row.state in OPEN:
        return Verdict(error=illegal(row, "redrive", command.actor, batch.tx.query))
    if row.stage is not None:
        return redrive_member(batch, command, row)
    if row.state == DEAD_LETTERED:
        ((successor,),) = tx.query("lock_letter", key=row.key)
        redriven = tx.query("task_by_key", key=successor) if successor is not None else []
        if redriven:
            return Verdict(receipt_of(redriven[0])._replace(actor=command.actor))
    (old,) = tx.query("spec_of", key=row.key)
    spec = spec_like(old, row.ns, actor_of(command), command.cause or "redrive", command.trace)
    spec.run_at, spec.attempts = run_at_us(tx.now, command.run_at, command.delay_s), attempts_of_successor(command, row)
    spec.correlation_id = old.correlation_id or old.id
    (receipt,) = write_tasks(batch, [spec])
    tx.query("copy_labels", to=spec.key, of=row.key)
    hand_on_aliases(tx, {row.key: spec.key})
    if row.state == DEAD_LETTERED:
        tx.batch("set_successor", {"key": [row.key], "successor": [spec.key]})
    return Verdict(receipt._replace(actor=command.actor))


HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    "resume": resume, "cancel": cancel, "redrive": redrive, "set_priority": set_priority, "reschedule": reschedule,
    "set_metadata": set_metadata,
}  # fmt: skip
"""By the verbs of the commands."""
