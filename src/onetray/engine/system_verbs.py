"""Commands that only the engine issues: expire, time out, promote, end a soft cancel, dead-letter.

Owns their effects. janitor.py finds the tasks that are due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.errors import Conflict
from onetray.domain.lifecycle import ASSIGNED, HELD, OPEN, PAUSED, QUEUED, RUNNING, TASK
from onetray.domain.retry import backoff_us
from onetray.domain.system_commands import DeadLetterIt, EndCancel, Expire, Promote, SystemCommand, TimeOut
from onetray.domain.task import COMPENSATION_FAILED, MAX_SPARED, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.control_verbs import accept_control, actor_of, decide_controls
from onetray.engine.holding import illegal
from onetray.engine.pending_writes import RUN, PendingWrites, event_detail, reopening
from onetray.engine.report_verbs import dead_letter_tasks
from onetray.store.rows import TaskRow


class NotDue(Conflict):
    """The task has changed meanwhile, or is not due yet: there is nothing to do."""

    code = "not_due"


def is_outdated(command: SystemCommand, row: TaskRow) -> bool:
    return command.fence is not None and command.fence != row.fence


def not_due(row: TaskRow) -> Verdict:
    return Verdict(error=NotDue(state=row.state, fence=row.fence))


def expire(batch: BatchContext, work: list[tuple[int, Expire, TaskRow]]) -> None:
    decide_controls(batch, work, _expire)


def _expire(batch: BatchContext, writes: PendingWrites, command: Expire, row: TaskRow) -> Verdict:
    if row.state not in HELD:
        return Verdict(error=illegal(row, "expire", command.actor))
    wrong_lease = command.lease is not None and command.lease != row.lease
    if is_outdated(command, row) or wrong_lease or (command.as_of or batch.tx.now) <= (row.lease_expires_at or 0):
        return not_due(row)
    if batch.can_only_finish(row):
        return accept_control(command, _cancel(batch, writes, command, row, _cancel_cause(row)))
    error = event_detail(**{"class": "LeaseExpired", "message": f"worker {row.owner} stopped renewing its lease"})
    is_spared = row.state == ASSIGNED and not row.expiry_counts
    if is_spared and row.spared >= MAX_SPARED:
        return accept_control(
            command,
            dead_letter_tasks(
                batch, writes, row, "infrastructure_failure", "fetch", error, after=command, by=actor_of(command)
            ),
        )
    if not is_spared:
        batch.outcomes.failed(row, "LeaseExpired")
        if row.attempts >= row.max_attempts:
            return accept_control(command, _exhausted(batch, writes, command, row, error, "exhausted_retries"))
    wait_us = 0 if is_spared else backoff_us(batch.policy(row), row.attempts, batch.rng)
    return accept_control(command, _reopen(batch, writes, command, row, is_spared, wait_us))


def _reopen(
    batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, is_spared: bool, wait_us: int
) -> TaskRow:
    """Return a task to its queue. If it is spared, because it was never started, that costs no attempt."""
    given_back, spared = (1, min(row.spared + 1, MAX_SPARED)) if is_spared else (0, 0)
    run_at = batch.tx.now + wait_us
    moved = writes.add(
        TASK.expire, row, actor_of(command), cause=command.cause or "the lease ran out", given_back=given_back,
        spared=spared,
        run_at=run_at,
        detail=reopening(
            row, run_at, owner=row.owner, lease_expires_at=row.lease_expires_at, given_back=bool(given_back)
        ),
    )  # fmt: skip
    return batch.update_row(moved._replace(spared=spared))


def _exhausted(
    batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, error: str, reason: str
) -> TaskRow:
    if batch.policy(row).on_exhaustion == "dead_letter" or batch.compensates(row):
        stage = "fetch" if row.state == ASSIGNED else "exec"
        return dead_letter_tasks(batch, writes, row, reason, stage, error, after=command, by=actor_of(command))
    return batch.update_row(_fail(writes, command, row, error, reason))


def _fail(writes: PendingWrites, command: SystemCommand, row: TaskRow, error: str, reason: str) -> TaskRow:
    detail = event_detail(report=command.verb, reason=reason, owner=row.owner, lease_expires_at=row.lease_expires_at)
    return writes.add(TASK.fail, row, actor_of(command), cause=command.cause or reason, error=error, detail=detail)


def _cancel_cause(row: TaskRow) -> str:
    return "cancel was requested" if row.cancel_at is not None else "its stage has ended"


def _cancel(batch: BatchContext, writes: PendingWrites, command: SystemCommand, row: TaskRow, cause: str) -> TaskRow:
    detail = event_detail(report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at)
    return batch.update_row(writes.add(TASK.cancel, row, actor_of(command), cause=cause, detail=detail))


def time_out(batch: BatchContext, work: list[tuple[int, TimeOut, TaskRow]]) -> None:
    reopened, ended = PendingWrites(batch), PendingWrites(batch)
    for i, command, row in work:
        batch.answer(i, _time_out(batch, reopened, ended, command, row))
    # A task with an expired lease returns to the queue before it times out there.
    reopened.flush()
    ended.flush()


def _time_out(
    batch: BatchContext, reopened: PendingWrites, ended: PendingWrites, command: TimeOut, row: TaskRow
) -> Verdict:
    if row.state not in OPEN:
        return Verdict(error=illegal(row, "time_out", command.actor))
    if is_outdated(command, row):
        return not_due(row)
    if command.limit == "queue_ttl":
        return _end_waiting(batch, ended, command, row) if _queue_ttl_is_over(batch, row) else not_due(row)
    if command.limit == "timeout":
        return _end_attempt(batch, ended, command, row) if row.state == RUNNING else not_due(row)
    if batch.can_only_finish(row):
        return accept_control(command, _cancel(batch, ended, command, row, _cancel_cause(row)))
    if row.state == RUNNING:
        if batch.compensates(row):
            return accept_control(command, _compensation_failed(batch, ended, command, row))
        return accept_control(command, batch.update_row(_fail(ended, command, row, _timeout_error(command), "timeout")))
    if row.state == ASSIGNED:
        row = _reopen(batch, reopened, command, row, is_spared=True, wait_us=0)
    if row.state in PAUSED and batch.compensates(row):
        # A dead letter comes from the queue or from a worker.
        row = batch.update_row(
            reopened.add(
                TASK.resume,
                row,
                actor_of(command),
                cause=command.limit,
                input=None,
                run_at=batch.tx.now,
                detail=reopening(row, batch.tx.now, answered=False),
            )
        )
    return _end_waiting(batch, ended, command, row)


def _compensation_failed(batch: BatchContext, writes: PendingWrites, command: TimeOut, row: TaskRow) -> TaskRow:
    stage = "fetch" if row.state == QUEUED else "exec"
    return dead_letter_tasks(
        batch, writes, row, COMPENSATION_FAILED, stage, _timeout_error(command), after=command, by=actor_of(command)
    )


def _queue_ttl_is_over(batch: BatchContext, row: TaskRow) -> bool:
    """Whether the queue TTL is over. It counts from `run_at`, so a reschedule starts it again."""
    ttl_s, since = batch.policy(row).queue_ttl_s, row.run_at
    if row.stage is not None:
        if batch.locked.holds_back(row):
            return False
        # The tasks of a stage wait in the queue only since the stage was opened.
        since = max(since, batch.locked.stage(row.stage).opened_at or 0)
    return row.state == QUEUED and (ttl_s is None or batch.tx.now >= since + int(ttl_s * SECOND))


def _timeout_error(command: TimeOut) -> str:
    return event_detail(**{"class": "Timeout", "message": f"timed out or was orphaned ({command.limit})"})


def _end_waiting(batch: BatchContext, writes: PendingWrites, command: TimeOut, row: TaskRow) -> Verdict:
    assert row.state in (QUEUED, *PAUSED)
    if batch.compensates(row):
        return accept_control(command, _compensation_failed(batch, writes, command, row))
    moved = writes.add(
        TASK.time_out, row, actor_of(command), cause=command.limit, error=_timeout_error(command),
        detail=event_detail(reason="timeout", limit=command.limit),
    )  # fmt: skip
    return accept_control(command, batch.update_row(moved))


def _end_attempt(batch: BatchContext, writes: PendingWrites, command: TimeOut, row: TaskRow) -> Verdict:
    """End an attempt that ran too long: it has failed, and the policy decides about a retry."""
    if batch.can_only_finish(row):
        return accept_control(command, _cancel(batch, writes, command, row, _cancel_cause(row)))
    error = _timeout_error(command)
    batch.outcomes.failed(row, "Timeout")
    if row.attempts >= row.max_attempts:
        return accept_control(command, _exhausted(batch, writes, command, row, error, "timeout"))
    run_at = batch.tx.now + backoff_us(batch.policy(row), row.attempts, batch.rng)
    moved = writes.add(
        TASK.retry, row, actor_of(command), cause=command.limit, error=error, run_at=run_at,
        detail=reopening(
            row, run_at, report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at,
            error=orjson.Fragment(error),
        ),
    )  # fmt: skip
    return accept_control(command, batch.update_row(moved))


def promote(batch: BatchContext, work: list[tuple[int, Promote, TaskRow]]) -> None:
    decide_controls(batch, work, _promote)


def _promote(batch: BatchContext, writes: PendingWrites, command: Promote, row: TaskRow) -> Verdict:
    if row.state != QUEUED or is_outdated(command, row) or row.run_at > batch.tx.now:
        return not_due(row)
    if row.stage is not None and batch.locked.holds_back(row):
        return not_due(row)
    writes.put("promote_ready", queue=row.line, rank=-row.priority, key=row.key, kind=row.kind)
    # The janitor deletes the due rows that it has read; a promote from elsewhere has to do it here.
    writes.put("delete_due", at=row.run_at, key=row.key, what=RUN)
    return accept_control(command, row)


def end_cancel(batch: BatchContext, work: list[tuple[int, EndCancel, TaskRow]]) -> None:
    decide_controls(batch, work, _end_cancel)


def _end_cancel(batch: BatchContext, writes: PendingWrites, command: EndCancel, row: TaskRow) -> Verdict:
    if row.state not in HELD or row.cancel_at is None or is_outdated(command, row):
        return not_due(row)
    return accept_control(command, _cancel(batch, writes, command, row, "the grace of the cancel is over"))


def dead_letter(batch: BatchContext, work: list[tuple[int, DeadLetterIt, TaskRow]]) -> None:
    decide_controls(batch, work, _dead_letter)


def _dead_letter(batch: BatchContext, writes: PendingWrites, command: DeadLetterIt, row: TaskRow) -> Verdict:
    if row.state not in (QUEUED, *HELD):
        return Verdict(error=illegal(row, "dead_letter", command.actor))
    if is_outdated(command, row):
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
