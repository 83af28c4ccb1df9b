"""Changes to many tasks of a flow at once: cancel them, make them claimable, withdraw them from claims.

Owns the bounded steps: one transaction changes a limited number of tasks. advance.py decides what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onetray.domain.clock import SECOND
from onetray.domain.flow import LAST_KEY
from onetray.domain.lifecycle import HELD, TASK
from onetray.engine.pending_writes import CANCEL, ENGINE, OPEN_STAGE, QUEUE_TTL, RUN, PendingWrites, event_detail
from onetray.store.rows import FlowRow, ReadyRow, StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.engine.flows.locked import LockedFlows

STEP = 2_000
"""How many tasks one transaction cancels because their flow or stage is ending."""
OPEN_STEP = 10_000
PAGE = 10_000
_TASKS_TO_CANCEL = {"hard": "unended_tasks", "soft": "tasks_without_cancel", None: "unheld_tasks"}


def cancel_tasks_of_stage(locked: LockedFlows, flow: FlowRow, stage: StageRow, budget: list[int]) -> bool:
    """Cancel tasks of a stage that is ending, within the budget. Returns whether none is left to cancel."""
    tx = locked.batch.tx
    if not stage.open and stage.deciding is None:
        return True
    # One more than the budget allows, to learn whether tasks are left.
    how = flow.ending_how or stage.ending_how
    keys = [key for (key,) in tx.query(_TASKS_TO_CANCEL[how], stage=stage.key, limit=budget[0] + 1)]
    to_cancel = keys[: budget[0]]
    budget[0] -= len(to_cancel)
    writes = PendingWrites(locked.batch)
    rows = tx.lock(to_cancel) if to_cancel else []
    for row in rows:
        if row.state in TASK.terminal or (how is None and row.state in HELD):
            continue  # It was claimed, or has ended, before the lock.
        if how == "soft" and row.state in HELD:
            request_cancel(locked, writes, row, flow, stage)
            continue
        detail = event_detail(owner=row.owner, lease_expires_at=row.lease_expires_at) if row.owner else None
        why = stage.ending_why
        locked.batch.rows[row.key] = writes.add(TASK.cancel, row, flow.ending_by or ENGINE, cause=why, detail=detail)
    writes.flush()
    return len(keys) == len(to_cancel)


def request_cancel(locked: LockedFlows, writes: PendingWrites, row: TaskRow, flow: FlowRow, stage: StageRow) -> None:
    """Request a cancel from the task's worker. After the grace period the janitor cancels the task."""
    now, grace_s = locked.batch.tx.now, locked.batch.policy(row).cancel_grace_s
    writes.put("set_cancel_at", key=row.key, at=now)
    writes.due(now + int(grace_s * SECOND), row.key, CANCEL, row.fence)
    writes.note(
        row, "task.cancel_requested", flow.ending_by or ENGINE, cause=stage.ending_why, trace=None,
        payload=event_detail(grace_s=grace_s),
    )  # fmt: skip
    locked.batch.rows[row.key] = row._replace(cancel_at=now)


def withdraw_tasks_of_stage(locked: LockedFlows, stage: StageRow, *, control: bool = True) -> None:
    """Make the queued tasks of a stage unclaimable, with or without its control task.

    Waits for claims in progress, whose ready rows are then gone.
    """
    tx, after = locked.batch.tx, 0
    while True:
        rows = tx.query("queued_of_stage", stage=stage.key, after=after, most=int(control), limit=PAGE)
        if rows:
            columns = zip(ReadyRow._fields, map(list, zip(*rows, strict=True)), strict=True)
            tx.batch("delete_ready", dict(columns))
            after = rows[-1].key
        if len(rows) < PAGE:
            return


def release_tasks_of_stage(locked: LockedFlows, stage: StageRow) -> None:
    """Make the next tasks of an open stage claimable. If more are left, a due row makes the janitor continue."""
    tx, after = locked.batch.tx, stage.opened_to or 0
    ((count, last),) = tx.query("next_to_open", stage=stage.key, after=after, limit=OPEN_STEP)
    more = count == OPEN_STEP
    if count:
        span = {"stage": stage.key, "after": after, "upto": last}
        # Sent together with the next query.
        policies = tx.query_later("policies_of_stage", **span)
        tx.query_later("open_due", at=tx.now, what=RUN, **span)
        opened = tx.query("open_ready", at=tx.now, **span)
        locked.batch.unclaimed_new.update([row.task for row in opened if row.queue > 0])
        locked.batch.limit_changes.enter({
            "queue": [row.queue for row in opened], "rank": [row.rank for row in opened],
            "key": [row.task for row in opened],
        })  # fmt: skip
        for (key,) in policies:
            ttl_s = tx.names.policy(key).queue_ttl_s
            if ttl_s is not None:
                tx.query("open_ttl", at=tx.now, ttl=int(ttl_s * SECOND), what=QUEUE_TTL, policy=key, **span)
    locked.change(stage, opened_to=last if more else LAST_KEY)
    if more:
        PendingWrites(locked.batch).due_now(stage.key, OPEN_STAGE)
