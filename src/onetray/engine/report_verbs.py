"""Reports of the worker that holds a task: start, succeed, fail, release, pause, beat, log, progress, checkpoint.

Owns the effect of each report. holding.py checks that the worker holds the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from onetray.domain.checks import as_json
from onetray.domain.clock import SECOND
from onetray.domain.commands import Beat, Checkpoint, Fail, Log, Pause, Progress, Release, Report, Start, Succeed
from onetray.domain.lifecycle import ASSIGNED, BLOCKED, RUNNING, SUCCEEDED, TASK
from onetray.domain.machine import WORKER
from onetray.domain.retry import backoff_us, retryable
from onetray.domain.task import COMPENSATION_FAILED, Beaten, Holding, Receipt, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.dead_letters import NewDeadLetter
from onetray.engine.fast_succeed import success_verdict
from onetray.engine.flows import success_extras
from onetray.engine.holding import holds, lease_lost, refuse_not_held, refuse_report
from onetray.engine.pending_writes import ENGINE, TIMEOUT, PendingWrites, actor, event_detail, once, reopening
from onetray.store.rows import RenewedRow, TaskRow


def reporter_of(command: Report, row: TaskRow) -> str:
    return actor(WORKER, command.worker or row.owner or "anonymous")


def accept_report(moved: TaskRow) -> Verdict:
    return Verdict(Receipt(None, moved.state, moved.fence, moved.version, WORKER))


def start(batch: BatchContext, work: list[tuple[int, Start, TaskRow]]) -> None:
    writes = PendingWrites(batch)
    for i, command, row in work:
        refusal = refuse_report(batch, command, row)
        if refusal is None and row.state == RUNNING:
            refusal = Verdict(Receipt(None, row.state, row.fence, row.version, WORKER, repeated=True))
        batch.answer(i, refusal or start_task(batch, writes, command, row))
    writes.flush()


def start_task(batch: BatchContext, writes: PendingWrites, command: Report, row: TaskRow) -> Verdict:
    timeout_s = batch.policy(row).timeout_s
    if timeout_s is not None:
        writes.due(batch.tx.now + int(timeout_s * SECOND), row.key, TIMEOUT, row.fence)
    return accept_report(batch.update_row(writes.add(TASK.start, row, reporter_of(command, row), trace=command.trace)))


def succeed(batch: BatchContext, work: list[tuple[int, Succeed, TaskRow]]) -> None:
    """Finish the tasks that the workers hold. Tasks that were not started are started in the same statement."""
    now, verdicts = batch.tx.now, batch.verdicts
    held: dict[str, list[tuple[Succeed, TaskRow]]] = {ASSIGNED: [], RUNNING: []}
    for i, command, row in work:
        if holds(command, row, now):
            if command.more is not None:
                refusal = success_extras.check_extras(batch, i, command, row)
                if refusal is not None:
                    verdicts[i] = refusal
                    continue
            held[row.state].append((command, row))
            batch.limit_changes.give_back(row)
            hops = 2 if row.state == ASSIGNED else 1
            verdicts[i] = success_verdict(row.fence, row.version + hops)
            batch.update_ended_row(row, SUCCEEDED, hops)
        else:
            verdicts[i] = refuse_not_held(batch, command, row)
    for state, group in held.items():
        if group:
            batch.tx.move(TASK.path(TASK.succeed, state), _success_columns(group, now))
            _set_metadata(batch, [(row.key, command.metadata) for command, row in group])
            batch.outcomes.succeeded([row for _, row in group])
    if batch.locked.flows:
        success_extras.count_successes(
            batch, [(i, c, row) for i, c, row in work if verdicts[i].ok and not verdicts[i].value.repeated]
        )


def _set_metadata(batch: BatchContext, reported: list[tuple[int, Any]]) -> None:
    """Replace the metadata of tasks whose reports have some."""
    new = [(key, as_json(metadata)) for key, metadata in reported if metadata is not None]
    if new:
        batch.tx.batch("set_metadata", {"key": [key for key, _ in new], "metadata": [text for _, text in new]})


def _success_columns(held: list[tuple[Succeed, TaskRow]], now: int) -> dict[str, Any]:
    """The columns of the move. A value that is the same for all tasks is passed once."""
    return {
        "key": [row.key for _, row in held],
        "version": once([row.version for _, row in held]),
        "fence": once([row.fence for _, row in held]),
        "attempts": once([row.attempts for _, row in held]),
        "job": [row.job for _, row in held],
        "ns": once([row.ns for _, row in held]),
        "result": once([command.result_json for command, _ in held]),
        "began": once([max(now - int(command.ran_s * SECOND), row.updated_at) for command, row in held]),
        "actor": once([actor(WORKER, row.owner or "") for _, row in held]),
        "trace": once([command.trace for command, _ in held]),
        "detail": once([_success_detail(command) for command, _ in held]),
        "at": once([max(now, row.updated_at) for _, row in held]), "cause": None,
    }  # fmt: skip


def _success_detail(command: Succeed) -> str | None:
    if command.more is None and command.metadata is None:
        return None
    return success_extras.detail(command.more, **_reported(command))


def _reported(command: Any) -> dict[str, bool]:
    """For the payload of an event: that the report has replaced the metadata of the task."""
    return {"metadata": True} if getattr(command, "metadata", None) is not None else {}


def decide_reports(
    batch: BatchContext,
    work: list[tuple[int, Any, TaskRow]],
    decide: Callable[[BatchContext, PendingWrites, Any, TaskRow], Verdict],
) -> None:
    """Call `decide` for each task that the reporting worker holds."""
    starts, writes = PendingWrites(batch), PendingWrites(batch)
    described = []
    for i, command, row in work:
        refusal = refuse_report(batch, command, row)
        if refusal is not None:
            batch.answer(i, refusal)
            continue
        if command.verb == "fail" and row.state == ASSIGNED and row.cancel_at is None:
            began = max(batch.tx.now - int(command.ran_s * SECOND), row.updated_at)
            row = starts.add(TASK.start, row, reporter_of(command, row), at=began, trace=command.trace)
        batch.answer(i, decide(batch, writes, command, row))
        if command.verb == "fail":
            described.append((row.key, command.metadata))
    # Starts come before the moves that follow them.
    starts.flush()
    writes.flush()
    _set_metadata(batch, described)


def fail(batch: BatchContext, work: list[tuple[int, Fail, TaskRow]]) -> None:
    decide_reports(batch, work, _fail)


def _fail(batch: BatchContext, writes: PendingWrites, command: Fail, row: TaskRow) -> Verdict:
    if row.cancel_at is not None:
        return accept_report(cancelled_instead(batch, writes, command, row))
    if command.reason_code is not None and not command.retryable:
        return accept_report(
            dead_letter_tasks(batch, writes, row, command.reason_code, command.stage, command.error_json, after=command)
        )
    policy = batch.policy(row)
    if not retryable(policy, command.error_class, command.retryable):
        if batch.compensates(row):
            return accept_report(
                dead_letter_tasks(
                    batch, writes, row, COMPENSATION_FAILED, command.stage, command.error_json, after=command
                )
            )
        moved = writes.add(
            TASK.fail, row, reporter_of(command, row), cause=command.error_class, trace=command.trace,
            error=command.error_json,
            detail=event_detail(error=orjson.Fragment(command.error_json), **_reported(command)),
        )  # fmt: skip
        return accept_report(batch.update_row(moved))
    return accept_report(attempt_failed(batch, writes, row, command, command.reason_code or "exhausted_retries"))


def attempt_failed(batch: BatchContext, writes: PendingWrites, row: TaskRow, failure: Fail, reason: str) -> TaskRow:
    """Queue the next attempt, or end the task if none is left."""
    policy, has_attempts_left = batch.policy(row), row.attempts < row.max_attempts
    if has_attempts_left and batch.can_only_finish(row):
        return cancelled_instead(batch, writes, failure, row)
    batch.outcomes.failed(row, failure.error_class)
    if has_attempts_left:
        wait_us = (
            backoff_us(policy, row.attempts, batch.rng)
            if failure.retry_after_s is None
            else int(failure.retry_after_s * SECOND)
        )
        moved = writes.add(
            TASK.retry, row, ENGINE, cause=failure.error_class, trace=failure.trace, error=failure.error_json,
            run_at=batch.tx.now + wait_us,
            detail=reopening(
                row, batch.tx.now + wait_us, report=failure.verb, owner=row.owner,
                lease_expires_at=row.lease_expires_at, error=orjson.Fragment(failure.error_json), **_reported(failure),
            ),
        )  # fmt: skip
        return batch.update_row(moved)
    if policy.on_exhaustion == "dead_letter" or batch.compensates(row):
        return dead_letter_tasks(batch, writes, row, reason, failure.stage, failure.error_json, after=failure)
    moved = writes.add(
        TASK.fail, row, ENGINE, cause=reason, trace=failure.trace, error=failure.error_json,
        detail=event_detail(
            report=failure.verb, reason=reason, error=orjson.Fragment(failure.error_json), **_reported(failure)
        ),
    )  # fmt: skip
    return batch.update_row(moved)


def cancelled_instead(batch: BatchContext, writes: PendingWrites, command: Report, row: TaskRow) -> TaskRow:
    """Cancel a task instead of queuing it again, because its cancel was requested or its stage has ended."""
    cause = "cancel was requested" if row.cancel_at is not None else "its stage has ended"
    moved = writes.add(
        TASK.cancel, row, ENGINE, cause=cause, trace=command.trace,
        detail=event_detail(
            report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at, **_reported(command)
        ),
    )  # fmt: skip
    return batch.update_row(moved)


def release_tasks(batch: BatchContext, work: list[tuple[int, Release, TaskRow]]) -> None:
    decide_reports(batch, work, _release)


def _release(batch: BatchContext, writes: PendingWrites, command: Release, row: TaskRow) -> Verdict:
    if batch.can_only_finish(row):
        return accept_report(cancelled_instead(batch, writes, command, row))
    run_at = batch.tx.now + int(command.delay_s * SECOND)
    moved = writes.add(
        TASK.release, row, reporter_of(command, row), cause=command.reason, trace=command.trace, run_at=run_at,
        detail=reopening(row, run_at, owner=row.owner, lease_expires_at=row.lease_expires_at),
    )  # fmt: skip
    return accept_report(batch.update_row(moved._replace(spared=0)))


def pause(batch: BatchContext, work: list[tuple[int, Pause, TaskRow]]) -> None:
    decide_reports(batch, work, _pause)


def _pause(batch: BatchContext, writes: PendingWrites, command: Pause, row: TaskRow) -> Verdict:
    if batch.can_only_finish(row):
        return accept_report(cancelled_instead(batch, writes, command, row))
    transition = TASK.block if command.state == BLOCKED else TASK.wait_for_input
    moved = writes.add(
        transition, row, reporter_of(command, row), cause=command.reason, trace=command.trace, held_by=command.owner,
        held_why=command.reason, detail=event_detail(held_by=command.owner, owner=row.owner,
        lease_expires_at=row.lease_expires_at),
    )  # fmt: skip
    return accept_report(batch.update_row(moved))


def beat(batch: BatchContext, work: list[tuple[int, Beat, TaskRow]]) -> None:
    """Renew leases. The verdicts list the tasks of each lease to cancel, and those that the worker has lost."""
    tx, writes = batch.tx, PendingWrites(batch)
    lengths: dict[int, int | None] = {}
    renewing: list[tuple[int, TaskRow]] = []
    for i, command, row in work:
        refusal = refuse_report(batch, command, row)
        if refusal is not None:
            batch.answer(i, refusal)
            continue
        assert row.lease is not None
        lengths[row.lease] = None if command.lease_s is None else int(command.lease_s * SECOND)
        renewing.append((i, row))
        if batch.policy(row).record_heartbeats:
            writes.note(row, "task.heartbeat", reporter_of(command, row), cause=None, trace=command.trace, payload=None)
    if renewing:
        # Locked in order first, so that two batches that renew the same leases cannot deadlock.
        leases = sorted(lengths)
        if len(leases) > 1:
            tx.query("lock_leases", keys=leases)
        columns = {"key": leases, "length": [lengths[k] for k in leases], "at": [tx.now] * len(leases)}
        renewed = {lease.key: lease for lease in tx.batch("renew_lease", columns)}
        keys = {key for lease in renewed.values() for key in orjson.loads(lease.tasks)}
        held = {task.key: task for task in tx.query("held_tasks", keys=sorted(keys))}
        for i, row in renewing:
            batch.answer(i, _beat_verdict(row, renewed, held))
    writes.flush()


def _beat_verdict(row: TaskRow, renewed: dict[int, RenewedRow], held: dict[int, Holding]) -> Verdict:
    lease = renewed.get(row.lease or 0)
    if lease is None:
        return Verdict(error=lease_lost(row, row.fence, "expired"))
    tasks = [held[key] for key in orjson.loads(lease.tasks) if key in held]
    cancel = tuple(task.id for task in tasks if task.lease == row.lease and task.cancel_at is not None)
    # Including a hard cancel and a deadline. Only a success was certainly reported by the worker itself.
    lost = tuple(task.id for task in tasks if task.lease != row.lease and task.state != SUCCEEDED)
    return Verdict(Beaten(lease.expires_at, cancel, lost))


def log(batch: BatchContext, work: list[tuple[int, Log, TaskRow]]) -> None:
    """Append log lines, numbered without gaps under the task's lock."""
    tx, writes = batch.tx, PendingWrites(batch)
    accepted = []
    for i, command, row in work:
        refusal = refuse_report(batch, command, row)
        if refusal is not None:
            batch.answer(i, refusal)
        else:
            accepted.append((i, command, row))
    last: dict[int, int] = dict(tx.query("last_cursor", keys=[row.key for _, _, row in accepted])) if accepted else {}
    numbers = _ReportNumbers(batch, [row for _, _, row in accepted])
    for i, command, row in accepted:
        for cursor, (level, line, data) in enumerate(command.stored, last.get(row.key, 0) + 1):
            writes.put(
                "insert_log", key=row.key, cursor=cursor, at=tx.now, attempt=row.attempts, level=level, line=line,
                data=data, **numbers.next(row),
            )  # fmt: skip
        batch.answer(i, Verdict(last.get(row.key, 0) + len(command.stored)))
    writes.flush()


class _ReportNumbers:
    """Numbers the log lines and the progress of a flow's tasks, all together. The lock of the flow keeps the order."""

    def __init__(self, batch: BatchContext, rows: list[TaskRow]) -> None:
        flows = sorted({row.job for row in rows if row.stage is not None})
        self._last: dict[int, int] = dict(batch.tx.query("last_report_numbers", keys=flows)) if flows else {}

    def next(self, row: TaskRow) -> dict[str, int | None]:
        """The columns of the next line or progress of a task; a single task needs none."""
        if row.stage is None:
            return {"job": None, "seq": None}
        self._last[row.job] += 1
        return {"job": row.job, "seq": self._last[row.job]}


def report_progress(batch: BatchContext, work: list[tuple[int, Progress, TaskRow]]) -> None:
    numbers = _ReportNumbers(batch, [row for _, _, row in work])

    def columns(command: Progress, row: TaskRow) -> dict[str, Any]:
        out_of = None if command.total is None else float(command.total)
        return {"done": float(command.done), "out_of": out_of, "message": command.message, **numbers.next(row)}

    _store_last(batch, work, "set_progress", columns)


def checkpoint(batch: BatchContext, work: list[tuple[int, Checkpoint, TaskRow]]) -> None:
    _store_last(batch, work, "set_checkpoint", lambda command, _: {"body": command.body_json})


def _store_last(batch: BatchContext, work: list[tuple[int, Any, TaskRow]], statement: str, columns: Any) -> None:
    writes = PendingWrites(batch)
    for i, command, row in work:
        refusal = refuse_report(batch, command, row)
        if refusal is None:
            writes.put(statement, key=row.key, at=batch.tx.now, attempt=row.attempts, **columns(command, row))
        batch.answer(i, refusal or accept_report(row))
    writes.flush()


def dead_letter_tasks(
    batch: BatchContext,
    writes: PendingWrites,
    row: TaskRow,
    reason: str,
    stage: str,
    error_json: str,
    *,
    after: Any,
    by: str = ENGINE,
    cause: str | None = None,
) -> TaskRow:
    """Set a task aside as a dead letter, because of the command `after`."""
    if batch.compensates(row):
        reason = COMPENSATION_FAILED
    writes.letters.append(NewDeadLetter(row, reason, stage, error_json))
    moved = writes.add(
        TASK.dead_letter,
        row,
        by,
        cause=cause or reason,
        trace=after.trace,
        error=error_json,
        detail=event_detail(
            report=after.verb,
            reason_code=reason,
            stage=stage,
            owner=row.owner,
            lease_expires_at=row.lease_expires_at,
            error=orjson.Fragment(error_json),
            **_reported(after),
        ),
    )
    return batch.update_row(moved)


HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    "start": start, "beat": beat, "succeed": succeed, "fail": fail, "release": release_tasks, "pause": pause,
    "log": log, "progress": report_progress, "checkpoint": checkpoint,
}  # fmt: skip
"""By the verbs of the commands."""
