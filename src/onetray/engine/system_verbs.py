"""What only the engine itself does: expire, time out, promote, end a soft cancel, dead-letter.

Owns what happens to work that nobody finished. Who is due for it is found by janitor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetray.domain.clock import SECOND
from onetray.domain.errors import Conflict
from onetray.domain.lifecycle import ASSIGNED, HELD, OPEN, PAUSED, QUEUED, RUNNING, TASK
from onetray.domain.retry import backoff_us
from onetray.domain.system_commands import DeadLetterIt, EndCancel, Expire, Promote, SystemCommand, TimeOut
from onetray.domain.task import MAX_SPARED, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.control_verbs import accept_control, actor_of, decide_controls
from onetray.engine.pending_writes import RUN, PendingWrites, event_detail
from onetray.engine.report_verbs import dead_letter_tasks, illegal
from onetray.store.rows import TaskRow


class NotDue(Conflict):
    """The task has moved on, or its time has not come: there is nothing to do."""

    code = "not_due"


def passed_by(command: SystemCommand, row: TaskRow) -> bool:
    return command.fence is not None and command.fence != row.fence


def not_due(row: TaskRow) -> Verdict:
    return Verdict(error=NotDue(state=row.state, fence=row.fence))


def expire(batch: BatchContext, work: list[tuple[int, Expire, TaskRow]]) -> None:
    decide_controls(batch, work, _expire)


def _expire(batch: BatchContext, writes: PendingWrites, command: Expire, row: TaskRow) -> Verdict:
    if row.state not in HELD:
        return Verdict(error=illegal(row, "expire", command.actor))
    wrong_lease = command.lease is not None and command.lease != row.lease
    if passed_by(command, row) or wrong_lease or (command.as_of or batch.tx.now) <= (row.lease_expires_at or 0):
        return not_due(row)
    if batch.can_only_finish(row):
        return accept_control(command, _end(batch, writes, command, row, _why(row)))
    error = event_detail(**{"class": "LeaseExpired", "message": f"worker {row.owner} stopped renewing its lease"})
    if row.state == ASSIGNED and row.spared >= MAX_SPARED:
        return accept_control(
            command,
            dead_letter_tasks(
                batch, writes, row, "infrastructure_failure", "fetch", error, after=command, by=actor_of(command)
            ),
        )
    never_started = row.state == ASSIGNED
    if not never_started:
        batch.outcomes.failed(row, "LeaseExpired")
        if row.attempts >= row.max_attempts:
            return accept_control(command, _exhausted(batch, writes, command, row, error, "exhausted_retries"))
    wait = 0 if never_started else backoff_us(batch.policy(row), row.attempts, batch.rng)
    return accept_control(command, _reopen(batch, writes, command, row, never_started, wait))


def _reopen(
    batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, never_started: bool, wait: int
) -> TaskRow:
    """Take the task from its holder. One that never began gets its attempt back."""
    given_back, spared = (1, min(row.spared + 1, MAX_SPARED)) if never_started else (0, 0)
    moved = writes.add(
        TASK.expire, row, actor_of(command), cause=command.cause or "the lease ran out", given_back=given_back,
        spared=spared,
        run_at=batch.tx.now + wait,
        detail=event_detail(owner=row.owner, lease_expires_at=row.lease_expires_at, given_back=bool(given_back)),
    )  # fmt: skip
    return batch.update_row(moved._replace(attempts=row.attempts - given_back, spared=spared))


def _exhausted(
    batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, error: str, reason: str
) -> TaskRow:
    if batch.policy(row).on_exhaustion == "dead_letter":
        return dead_letter_tasks(batch, writes, row, reason, "exec", error, after=command, by=actor_of(command))
    return batch.update_row(_failed(writes, command, row, error, reason))


def _failed(writes: PendingWrites, command: SystemCommand, row: TaskRow, error: str, reason: str) -> TaskRow:
    detail = event_detail(report=command.verb, reason=reason, owner=row.owner, lease_expires_at=row.lease_expires_at)
    return writes.add(TASK.fail, row, actor_of(command), cause=command.cause or reason, error=error, detail=detail)


def _why(row: TaskRow) -> str:
    return "cancel was requested" if row.cancel_at is not None else "its stage has ended"


def _end(batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, cause: str) -> TaskRow:
    detail = event_detail(report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at)
    return batch.update_row(writes.add(TASK.cancel, row, actor_of(command), cause=cause, detail=detail))


def time_out(batch: BatchContext, work: list[tuple[int, TimeOut, TaskRow]]) -> None:
    first, second = PendingWrites(batch), PendingWrites(batch)
    for i, command, row in work:
        batch.answer(i, _time_out(batch, first, second, command, row))
    # A task that is taken from its holder is back in the queue before it ends there.
    first.flush()
    second.flush()


def _time_out(
    batch: BatchContext, first: PendingWrites, second: PendingWrites, command: TimeOut, row: TaskRow
) -> Verdict:
    if row.state not in OPEN:
        return Verdict(error=illegal(row, "time_out", command.actor))
    if passed_by(command, row):
        return not_due(row)
    if command.limit == "queue_ttl":
        return _end_waiting(batch, second, command, row) if _waited_long(batch, row) else not_due(row)
    if command.limit == "timeout":
        return _end_attempt(batch, second, command, row) if row.state == RUNNING else not_due(row)
    if batch.can_only_finish(row):
        return accept_control(command, _end(batch, second, command, row, _why(row)))
    if row.state == RUNNING:
        return accept_control(command, batch.update_row(_failed(second, command, row, _timed_out(command), "timeout")))
    if row.state == ASSIGNED:
        row = _reopen(batch, first, command, row, never_started=True, wait=0)
    return _end_waiting(batch, second, command, row)


def _waited_long(batch: BatchContext, row: TaskRow) -> bool:
    """Whether its time in the queue is over: one that was rescheduled waits from its new time on."""
    ttl_s, since = batch.policy(row).queue_ttl_s, row.run_at
    if row.stage is not None:
        if batch.locked.holds_back(row):
            return False
        # What its flow held back has waited in the queue only since it was let go.
        since = max(since, batch.locked.stage(row.stage).opened_at or 0)
    return row.state == QUEUED and (ttl_s is None or batch.tx.now >= since + int(ttl_s * SECOND))


def _timed_out(command: TimeOut) -> str:
    return event_detail(**{"class": "Timeout", "message": f"timed out or was orphaned ({command.limit})"})


def _end_waiting(batch: BatchContext, writes: PendingWrites, command: TimeOut, row: TaskRow) -> Verdict:
    assert row.state in (QUEUED, *PAUSED)
    moved = writes.add(
        TASK.time_out, row, actor_of(command), cause=command.limit, error=_timed_out(command),
        detail=event_detail(reason="timeout", limit=command.limit),
    )  # fmt: skip
    return accept_control(command, batch.update_row(moved))


def _end_attempt(batch: BatchContext, writes: PendingWrites, command: TimeOut, row: TaskRow) -> Verdict:
    """A handler ran too long: its attempt has failed, and the policy decides what follows."""
    if batch.can_only_finish(row):
        return accept_control(command, _end(batch, writes, command, row, _why(row)))
    error = _timed_out(command)
    batch.outcomes.failed(row, "Timeout")
    if row.attempts >= row.max_attempts:
        return accept_control(command, _exhausted(batch, writes, command, row, error, "timeout"))
    wait = backoff_us(batch.policy(row), row.attempts, batch.rng)
    moved = writes.add(
        TASK.retry, row, actor_of(command), cause=command.limit, error=error, run_at=batch.tx.now + wait,
        detail=event_detail(report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at),
    )  # fmt: skip
    return accept_control(command, batch.update_row(moved))


def promote(batch: BatchContext, work: list[tuple[int, Promote, TaskRow]]) -> None:
    decide_controls(batch, work, _promote)


def _promote(batch: BatchContext, writes: PendingWrites, command: Promote, row: TaskRow) -> Verdict:
    if row.state != QUEUED or passed_by(command, row) or row.run_at > batch.tx.now:
        return not_due(row)
    if row.stage is not None and batch.locked.holds_back(row):
        return not_due(row)
    writes.put("promote_ready", queue=row.queue, rank=-row.priority, key=row.key, kind=row.kind)
    # Whoever promotes a task takes its due row, the janitor or not.
    writes.put("delete_due", at=row.run_at, key=row.key, what=RUN)
    return accept_control(command, row)


def end_cancel(batch: BatchContext, work: list[tuple[int, EndCancel, TaskRow]]) -> None:
    decide_controls(batch, work, _end_cancel)


def _end_cancel(batch: BatchContext, writes: PendingWrites, command: EndCancel, row: TaskRow) -> Verdict:
    if row.state not in HELD or row.cancel_at is None or passed_by(command, row):
        return not_due(row)
    return accept_control(command, _end(batch, writes, command, row, "the grace of the cancel is over"))


def dead_letter(batch: BatchContext, work: list[tuple[int, DeadLetterIt, TaskRow]]) -> None:
    decide_controls(batch, work, _dead_letter)


def _dead_letter(batch: BatchContext, writes: PendingWrites, command: DeadLetterIt, row: TaskRow) -> Verdict:
    if row.state not in (QUEUED, *HELD):
        return Verdict(error=illegal(row, "dead_letter", command.actor))
    if passed_by(command, row):
        return not_due(row)
    error: dict[str, Any] = {"class": "PolicyError", "message": command.message or command.reason_code}
    moved = dead_letter_tasks(
        batch, writes, row, command.reason_code, command.stage, event_detail(**error), after=command,
        by=actor_of(command),
        cause=command.cause,
    )  # fmt: skip
    return accept_control(command, moved)


HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    "expire": expire, "time_out": time_out, "promote": promote, "end_cancel": end_cancel, "dead_letter": dead_letter,
}  # fmt: skip
"""By the verbs of the commands."""
