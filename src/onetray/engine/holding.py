"""Who holds a task: the check of every report, and why one is refused.

Owns the comparison of fence, owner and lease, and the recognition of a repeated report. Effects: report_verbs.py.
"""

from __future__ import annotations

import orjson

from onetray.domain.actions import actions_by_state
from onetray.domain.commands import Pause, Report
from onetray.domain.errors import IllegalTransition, LeaseLost, OnetrayError
from onetray.domain.lifecycle import BLOCKED, HELD, QUEUED, RUNNING, SUCCEEDED, TASK
from onetray.domain.machine import USER, WORKER
from onetray.domain.refusal import refusal_text
from onetray.domain.task import Receipt, Verdict, fence_of_lease, lease_text
from onetray.engine.batch_context import BatchContext
from onetray.engine.refusals import NO_REDRIVE, Query, is_uncertain, refuse_redrive
from onetray.store.rows import OutcomeRow, TaskRow

EVENTS_OF_REPORT = {
    "start": ("task.started",),
    "succeed": ("task.succeeded",),
    "fail": ("task.failed", "task.retried", "task.dead_lettered"),
    "release": ("task.released",),
    "pause": ("task.blocked", "task.waiting_input"),
}
"""The events of each report, by which a repeated report is recognized."""


def _events_of(command: Report) -> tuple[str, ...]:
    if isinstance(command, Pause):
        # Only the event of this state: "blocked" does not repeat "waiting for input".
        return (TASK.block.event if command.state == BLOCKED else TASK.wait_for_input.event,)
    return EVENTS_OF_REPORT.get(command.verb, ())


def holds(command: Report, row: TaskRow, now: int) -> bool:
    """Whether the worker holds the task: the fence, the owner and the lease are valid."""
    return (
        row.state in HELD
        and (command.fence is None or command.fence == row.fence)
        and (command.worker is None or command.worker == row.owner)
        and now <= (row.lease_expires_at or 0)
        and (command.lease_id is None or command.lease_id == lease_text(row.key, row.fence))
    )


def refuse_report(batch: BatchContext, command: Report, row: TaskRow) -> Verdict | None:
    """The verdict of a report by a worker that does not hold the task, or None if it holds it."""
    return None if holds(command, row, batch.tx.now) else refuse_not_held(batch, command, row)


def refuse_not_held(batch: BatchContext, command: Report, row: TaskRow) -> Verdict:
    """The verdict of a worker that does not hold the task: a receipt for a repeated report, else an error."""
    fence = _fence_of(command, row)
    if fence is None:
        return Verdict(error=lease_lost(row, command.fence, "other_lease"))
    is_own_attempt = fence == row.fence and (command.worker is None or row.owner is None or command.worker == row.owner)
    if is_own_attempt and row.state in HELD:
        return Verdict(error=lease_lost(row, fence, "expired"))
    if _is_repeated(batch, command, row, fence):
        return Verdict(Receipt(None, row.state, row.fence, row.version, WORKER, repeated=True))
    if is_own_attempt:
        return Verdict(error=illegal(row, command.verb, WORKER))
    if fence >= row.fence:
        return Verdict(error=lease_lost(row, fence, "no_such_attempt" if fence > row.fence else "other_worker"))
    end = _end_of_attempt(batch, row, fence)
    return Verdict(error=lease_lost(row, fence, "expired" if end and end.type == TASK.expire.event else "ended"))


def _fence_of(command: Report, row: TaskRow) -> int | None:
    """The fence of the attempt that a report names; None if its lease id is of no attempt, or of another one."""
    if command.lease_id is None:
        return row.fence if command.fence is None else command.fence
    fence = fence_of_lease(command.lease_id, row.key)
    return fence if command.fence in (None, fence) else None


WHY_LOST = {
    "expired": "the lease ran out and was not renewed in time",
    "ended": "this attempt has ended, and another one has been opened",
    "other_worker": "another worker holds it",
    "other_lease": "this is not the lease of that attempt",
    "no_such_attempt": "there has been no such attempt",
}
"""The causes of a LeaseLost."""


def lease_lost(row: TaskRow, fence: int | None, cause: str) -> LeaseLost:
    return LeaseLost(
        f"{WHY_LOST[cause]}: drop the work and claim again",
        cause=cause, fence=fence, current_fence=row.fence, state=row.state,
    )  # fmt: skip


def illegal(row: TaskRow, verb: str, actor_kind: str, query: Query | None = None) -> OnetrayError:
    """The error about a command that the task's state does not allow. `query` finds out whether it can be redriven."""
    allowed = actions_by_state(TASK.entity, row.state, actor_kind)
    is_asked = actor_kind == USER and is_uncertain(row.state, row.stage is not None)
    if query is not None and is_asked and refuse_redrive(query, [row.key]):
        allowed = tuple(name for name in allowed if name not in NO_REDRIVE)
    return IllegalTransition(
        f"{refusal_text(TASK.entity, row.state, verb)}; "
        f"allowed to a {actor_kind} now: {', '.join(allowed) or 'nothing'}",
        **{"from": row.state, "attempted": verb, "allowed": list(allowed)},
    )


def _is_repeated(batch: BatchContext, command: Report, row: TaskRow, fence: int) -> bool:
    """Whether the same report about the same attempt was accepted before."""
    expected = _events_of(command)
    is_other_worker = command.worker is not None and row.owner is not None and command.worker != row.owner
    if not expected or not 0 < fence <= row.fence or (is_other_worker and fence == row.fence):
        return False
    if row.state == SUCCEEDED and row.fence == fence:
        return command.verb == "succeed"
    end = _end_of_attempt(batch, row, fence)
    if end is None:
        return command.verb == "start" and row.fence == fence and row.state == RUNNING
    reported = orjson.loads(end.payload).get("report") if end.payload else None
    return reported == command.verb or (reported is None and end.type in expected)


def _end_of_attempt(batch: BatchContext, row: TaskRow, fence: int) -> OutcomeRow | None:
    """The event that ended an attempt, if it has ended."""
    for event in batch.tx.query("outcomes_of_attempt", key=row.key, fence=fence):
        ended_attempt = event.fence == fence and event.state not in (QUEUED, *HELD)
        opened_next_attempt = event.fence == fence + 1 and event.state == QUEUED
        if ended_attempt or opened_next_attempt:
            return event
    return None
