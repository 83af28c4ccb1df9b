"""What the holder of a task may say: start, succeed, fail, release, pause, beat, log.

Owns the checks that a reporter really holds the task, and what each report leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.commands import Beat, Checkpoint, Fail, Log, Pause, Progress, Release, Report, Start, Succeed
from onetray.domain.errors import IllegalTransition, LeaseLost, OnetrayError
from onetray.domain.lifecycle import ASSIGNED, BLOCKED, HELD, QUEUED, RUNNING, SUCCEEDED, TASK
from onetray.domain.machine import WORKER
from onetray.domain.retry import backoff_us, retryable
from onetray.domain.task import Beaten, Holding, Receipt, Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.dead_letters import NewDeadLetter
from onetray.engine.flows import success_extras
from onetray.engine.pending_writes import ENGINE, TIMEOUT, PendingWrites, actor, event_detail, once
from onetray.store.rows import RenewedRow, TaskRow

REPORTED = {
    "start": ("task.started",),
    "succeed": ("task.succeeded",),
    "fail": ("task.failed", "task.retried", "task.dead_lettered"),
    "release": ("task.released",),
    "pause": ("task.blocked", "task.waiting_input"),
}
"""The events that a report leads to: a repeated one finds its own."""


def _expected(command: Report) -> tuple[str, ...]:
    if isinstance(command, Pause):
        # Waiting for input is another outcome than being blocked.
        return (TASK.block.event if command.state == BLOCKED else TASK.wait_for_input.event,)
    return REPORTED.get(command.verb, ())


def holds(command: Report, row: TaskRow, now: int) -> bool:
    """Whether the reporter has the task: its attempt, its name, its lease in force."""
    return (
        row.state in HELD
        and (command.fence is None or command.fence == row.fence)
        and (command.worker is None or command.worker == row.owner)
        and now <= (row.lease_expires_at or 0)
    )


def refuse_report(batch: BatchContext, command: Report, row: TaskRow) -> Verdict | None:
    """Why this reporter may not speak for the task, or None when it may."""
    return None if holds(command, row, batch.tx.now) else not_held(batch, command, row)


def not_held(batch: BatchContext, command: Report, row: TaskRow) -> Verdict:
    """The answer to somebody who does not hold the task: a repeated report, or why it is refused."""
    fence = row.fence if command.fence is None else command.fence
    mine = fence == row.fence and (command.worker is None or row.owner is None or command.worker == row.owner)
    if mine and row.state in HELD:
        return Verdict(error=_lost(row, fence, "the lease ran out and was not renewed in time"))
    if _said_before(batch, command, row, fence):
        return Verdict(Receipt(None, row.state, row.fence, row.version, WORKER, repeated=True))
    if mine:
        return Verdict(error=illegal(row, command.verb, WORKER))
    if fence > row.fence:
        return Verdict(error=_lost(row, fence, "there has been no such attempt"))
    return Verdict(error=_lost(row, fence, "another attempt has been opened or another worker holds it"))


def _lost(row: TaskRow, fence: int, why: str) -> LeaseLost:
    return LeaseLost(f"{why}: drop the work and claim again", fence=fence, current_fence=row.fence, state=row.state)


def illegal(row: TaskRow, verb: str, who: str) -> OnetrayError:
    allowed = TASK.actions(row.state, who)
    return IllegalTransition(
        f"a task that is {row.state} cannot {verb}; allowed to a {who} now: {', '.join(allowed) or 'nothing'}",
        **{"from": row.state, "attempted": verb, "allowed": list(allowed)},
    )


def _said_before(batch: BatchContext, command: Report, row: TaskRow, fence: int) -> bool:
    """Whether the same report about the same attempt was accepted before."""
    expected = _expected(command)
    somebody_elses = command.worker is not None and row.owner is not None and command.worker != row.owner
    if not expected or not 0 < fence <= row.fence or (somebody_elses and fence == row.fence):
        return False
    if row.state == SUCCEEDED and row.fence == fence:
        return command.verb == "succeed"
    for event in batch.tx.query("outcomes_of_attempt", key=row.key, fence=fence):
        ended_it = event.fence == fence and event.state not in (QUEUED, *HELD)
        opened_next = event.fence == fence + 1 and event.state == QUEUED
        if ended_it or opened_next:
            reported = orjson.loads(event.payload).get("report") if event.payload else None
            return reported == command.verb or (reported is None and event.type in expected)
    return command.verb == "start" and row.fence == fence and row.state == RUNNING


def reporter_of(command: Report, row: TaskRow) -> str:
    return actor(WORKER, command.worker or row.owner or "anonymous")


def accept_report(moved: TaskRow) -> Verdict:
    return Verdict(Receipt(None, moved.state, moved.fence, moved.version, WORKER))


def start(batch: BatchContext, work: list[tuple[int, Start, TaskRow]]) -> None:
    writes = PendingWrites(batch)
    for i, command, row in work:
        no = refuse_report(batch, command, row)
        if no is None and row.state == RUNNING:
            no = Verdict(Receipt(None, row.state, row.fence, row.version, WORKER, repeated=True))
        batch.answer(i, no or _start(batch, writes, command, row))
    writes.flush()


def _start(batch: BatchContext, writes: PendingWrites, command: Report, row: TaskRow) -> Verdict:
    timeout_s = batch.policy(row).timeout_s
    if timeout_s is not None:
        writes.due(batch.tx.now + int(timeout_s * SECOND), row.key, TIMEOUT, row.fence)
    return accept_report(batch.update_row(writes.add(TASK.start, row, reporter_of(command, row), trace=command.trace)))


def succeed(batch: BatchContext, work: list[tuple[int, Succeed, TaskRow]]) -> None:
    """Finish the tasks that the callers hold. Those not started yet are started in the same write."""
    now, verdicts = batch.tx.now, batch.verdicts
    held: dict[str, list[tuple[Succeed, TaskRow]]] = {ASSIGNED: [], RUNNING: []}
    for i, command, row in work:
        if holds(command, row, now):
            if command.more is not None:
                no = success_extras.check_extras(batch, i, command, row)
                if no is not None:
                    verdicts[i] = no
                    continue
            held[row.state].append((command, row))
            hops = 2 if row.state == ASSIGNED else 1
            verdicts[i] = _succeeded(row.fence, row.version + hops)
            batch.update_ended_row(row, SUCCEEDED, hops)
        else:
            verdicts[i] = not_held(batch, command, row)
    for state, those in held.items():
        if those:
            batch.tx.move(TASK.path(TASK.succeed, state), _succeeding(those, now))
            batch.outcomes.succeeded([row for _, row in those])
    if batch.locked.flows:
        success_extras.count_successes(
            batch, [(i, c, row) for i, c, row in work if verdicts[i].ok and not verdicts[i].value.repeated]
        )


@lru_cache(maxsize=1024)
def _succeeded(fence: int, version: int) -> Verdict:
    # Most tasks succeed at their first attempt: they share one answer.
    return Verdict(Receipt(None, SUCCEEDED, fence, version, WORKER))


def _succeeding(held: list[tuple[Succeed, TaskRow]], now: int) -> dict[str, Any]:
    """The hot path: whole columns, and what is the same for all tasks only once."""
    return {
        "key": [row.key for _, row in held],
        "version": once([row.version for _, row in held]),
        "fence": once([row.fence for _, row in held]),
        "result": once([command.result_json for command, _ in held]),
        "began": once([now - int(command.ran_s * SECOND) for command, _ in held]),
        "actor": once([actor(WORKER, row.owner or "") for _, row in held]),
        "trace": once([command.trace for command, _ in held]),
        "detail": once([None if command.more is None else success_extras.detail(command.more) for command, _ in held]),
        "at": now, "cause": None,
    }  # fmt: skip


def decide_reports(
    batch: BatchContext,
    work: list[tuple[int, Any, TaskRow]],
    decide: Callable[[BatchContext, PendingWrites, Any, TaskRow], Verdict],
) -> None:
    """Let a decision be made about each task that its reporter holds."""
    first, second = PendingWrites(batch), PendingWrites(batch)
    for i, command, row in work:
        no = refuse_report(batch, command, row)
        if no is not None:
            batch.answer(i, no)
            continue
        if command.verb == "fail" and row.state == ASSIGNED and row.cancel_at is None:
            began = batch.tx.now - int(command.ran_s * SECOND)
            row = first.add(TASK.start, row, reporter_of(command, row), at=began, trace=command.trace)
        batch.answer(i, decide(batch, second, command, row))
    # Starts are written before what follows from them.
    first.flush()
    second.flush()


def fail(batch: BatchContext, work: list[tuple[int, Fail, TaskRow]]) -> None:
    decide_reports(batch, work, _fail)


def _fail(batch: BatchContext, writes: PendingWrites, command: Fail, row: TaskRow) -> Verdict:
    if row.cancel_at is not None:
        return accept_report(cancelled_instead(batch, writes, command, row))
    if command.reason_code is not None:
        return accept_report(
            dead_letter_tasks(batch, writes, row, command.reason_code, command.stage, command.error_json, after=command)
        )
    policy = batch.policy(row)
    if not retryable(policy, command.error_class, command.retryable):
        moved = writes.add(
            TASK.fail, row, reporter_of(command, row), cause=command.error_class, trace=command.trace,
            error=command.error_json,
            detail=event_detail(error=orjson.Fragment(command.error_json)),
        )  # fmt: skip
        return accept_report(batch.update_row(moved))
    return accept_report(attempt_failed(batch, writes, row, command, "exhausted_retries"))


def attempt_failed(batch: BatchContext, writes: PendingWrites, row: TaskRow, failure: Fail, reason: str) -> TaskRow:
    """Open the next attempt, or end the task when none is left."""
    policy, tries_left = batch.policy(row), row.attempts < row.max_attempts
    if tries_left and batch.can_only_finish(row):
        return cancelled_instead(batch, writes, failure, row)
    batch.outcomes.failed(row, failure.error_class)
    if tries_left:
        wait = (
            backoff_us(policy, row.attempts, batch.rng)
            if failure.retry_after_s is None
            else int(failure.retry_after_s * SECOND)
        )
        moved = writes.add(
            TASK.retry, row, ENGINE, cause=failure.error_class, trace=failure.trace, error=failure.error_json,
            run_at=batch.tx.now + wait,
            detail=event_detail(
                report=failure.verb, owner=row.owner, lease_expires_at=row.lease_expires_at,
                run_at=batch.tx.now + wait, error=orjson.Fragment(failure.error_json),
            ),
        )  # fmt: skip
        return batch.update_row(moved)
    if policy.on_exhaustion == "dead_letter":
        return dead_letter_tasks(batch, writes, row, reason, failure.stage, failure.error_json, after=failure)
    moved = writes.add(
        TASK.fail, row, ENGINE, cause=reason, trace=failure.trace, error=failure.error_json,
        detail=event_detail(report=failure.verb, reason=reason, error=orjson.Fragment(failure.error_json)),
    )  # fmt: skip
    return batch.update_row(moved)


def cancelled_instead(batch: BatchContext, writes: PendingWrites, command: Report, row: TaskRow) -> TaskRow:
    """After a soft cancel, or the end of its stage, whatever would queue it again ends in the cancelled tray."""
    cause = "cancel was requested" if row.cancel_at is not None else "its stage has ended"
    moved = writes.add(
        TASK.cancel, row, ENGINE, cause=cause, trace=command.trace,
        detail=event_detail(report=command.verb, owner=row.owner, lease_expires_at=row.lease_expires_at),
    )  # fmt: skip
    return batch.update_row(moved)


def release_tasks(batch: BatchContext, work: list[tuple[int, Release, TaskRow]]) -> None:
    decide_reports(batch, work, _release)


def _release(batch: BatchContext, writes: PendingWrites, command: Release, row: TaskRow) -> Verdict:
    if batch.can_only_finish(row):
        return accept_report(cancelled_instead(batch, writes, command, row))
    moved = writes.add(
        TASK.release, row, reporter_of(command, row), cause=command.reason, trace=command.trace,
        run_at=batch.tx.now + int(command.delay_s * SECOND),
        detail=event_detail(owner=row.owner, lease_expires_at=row.lease_expires_at),
    )  # fmt: skip
    return accept_report(batch.update_row(moved._replace(attempts=row.attempts - 1, spared=0)))


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
    return accept_report(batch.update_row(moved._replace(attempts=row.attempts - 1)))


def beat(batch: BatchContext, work: list[tuple[int, Beat, TaskRow]]) -> None:
    """Renew leases; tell each worker which of the lease's tasks should stop, and which it has lost."""
    tx, writes = batch.tx, PendingWrites(batch)
    wanted: dict[int, int | None] = {}
    asking: list[tuple[int, TaskRow]] = []
    for i, command, row in work:
        no = refuse_report(batch, command, row)
        if no is not None:
            batch.answer(i, no)
            continue
        assert row.lease is not None
        wanted[row.lease] = None if command.lease_s is None else int(command.lease_s * SECOND)
        asking.append((i, row))
        if batch.policy(row).record_heartbeats:
            writes.note(row, "task.heartbeat", reporter_of(command, row), cause=None, trace=command.trace, payload=None)
    if asking:
        # Locked in order first, so that two batches that renew the same leases cannot wait for each other.
        leases = sorted(wanted)
        if len(leases) > 1:
            tx.query("lock_leases", keys=leases)
        columns = {"key": leases, "length": [wanted[k] for k in leases], "at": [tx.now] * len(leases)}
        renewed = {lease.key: lease for lease in tx.batch("renew_lease", columns)}
        keys = {key for lease in renewed.values() for key in orjson.loads(lease.tasks)}
        held = {task.key: task for task in tx.query("held_tasks", keys=sorted(keys))}
        for i, row in asking:
            batch.answer(i, _beaten(row, renewed, held))
    writes.flush()


def _beaten(row: TaskRow, renewed: dict[int, RenewedRow], held: dict[int, Holding]) -> Verdict:
    lease = renewed.get(row.lease or 0)
    if lease is None:
        return Verdict(error=_lost(row, row.fence, "the lease ran out and was not renewed in time"))
    mine = [held[key] for key in orjson.loads(lease.tasks) if key in held]
    cancel = tuple(task.id for task in mine if task.lease == row.lease and task.cancel_at is not None)
    # Whatever took it from its worker, also a hard cancel or a deadline: only a success is the worker's own for sure.
    lost = tuple(task.id for task in mine if task.lease != row.lease and task.state != SUCCEEDED)
    return Verdict(Beaten(lease.expires_at, cancel, lost))


def log(batch: BatchContext, work: list[tuple[int, Log, TaskRow]]) -> None:
    """Append lines, numbered without a gap under the task's lock."""
    tx, writes = batch.tx, PendingWrites(batch)
    speaking = []
    for i, command, row in work:
        no = refuse_report(batch, command, row)
        if no is not None:
            batch.answer(i, no)
        else:
            speaking.append((i, command, row))
    last: dict[int, int] = dict(tx.query("last_cursor", keys=[row.key for _, _, row in speaking])) if speaking else {}
    for i, command, row in speaking:
        for cursor, (level, line, data) in enumerate(command.stored, last.get(row.key, 0) + 1):
            writes.put(
                "insert_log", key=row.key, cursor=cursor, at=tx.now, attempt=row.attempts, level=level, line=line,
                data=data,
            )  # fmt: skip
        batch.answer(i, Verdict(last.get(row.key, 0) + len(command.stored)))
    writes.flush()


def report_progress(batch: BatchContext, work: list[tuple[int, Progress, TaskRow]]) -> None:
    _keep(
        batch,
        work,
        "set_progress",
        lambda said: {
            "done": float(said.done),
            "out_of": None if said.total is None else float(said.total),
            "message": said.message,
        },
    )


def checkpoint(batch: BatchContext, work: list[tuple[int, Checkpoint, TaskRow]]) -> None:
    _keep(batch, work, "set_checkpoint", lambda said: {"body": said.body_json})


def _keep(batch: BatchContext, work: list[tuple[int, Any, TaskRow]], statement: str, columns: Any) -> None:
    writes = PendingWrites(batch)
    for i, command, row in work:
        no = refuse_report(batch, command, row)
        if no is None:
            writes.put(statement, key=row.key, at=batch.tx.now, attempt=row.attempts, **columns(command))
        batch.answer(i, no or accept_report(row))
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
    """Move a task to the dead letters after a command, and have its letter written."""
    if row.stage is not None and reason == "exhausted_retries" and batch.locked.flows[row.job].compensates is not None:
        reason = "compensation_failed"
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
        ),
    )
    return batch.update_row(moved)


HANDLERS: dict[str, Callable[[BatchContext, list[tuple[int, Any, TaskRow]]], None]] = {
    "start": start, "beat": beat, "succeed": succeed, "fail": fail, "release": release_tasks, "pause": pause,
    "log": log, "progress": report_progress, "checkpoint": checkpoint,
}  # fmt: skip
"""By the verbs of the commands."""
