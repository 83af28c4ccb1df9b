"""What a flow does to many tasks at once: cancel them, let them go, hold them back.

Owns the steps: none does more than its share in one transaction. Decides nothing: see advance.py.
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
"""How many tasks one transaction cancels because of what became of their flow."""
OPENED_AT_ONCE = 10_000
PAGE = 10_000
_LEFT = {"hard": "unended_tasks", "soft": "unasked_tasks", None: "unheld_tasks"}


def cancel_some(locked: LockedFlows, flow: FlowRow, stage: StageRow, budget: list[int]) -> bool:
    """Cancel tasks of a stage that is to end. Whether none is left that should be."""
    tx = locked.batch.tx
    if not stage.open and stage.deciding is None:
        return True
    # One more than there is room for: it tells whether that is all.
    keys = [key for (key,) in tx.query(_LEFT[flow.ending_how], stage=stage.key, limit=budget[0] + 1)]
    some = keys[: budget[0]]
    budget[0] -= len(some)
    writes = PendingWrites(locked.batch)
    rows = tx.lock(some) if some else []
    for row in rows:
        if row.state in TASK.terminal or (flow.ending_how is None and row.state in HELD):
            continue  # A claim came first.
        if flow.ending_how == "soft" and row.state in HELD:
            ask_to_stop(locked, writes, row, flow, stage)
            continue
        detail = event_detail(owner=row.owner, lease_expires_at=row.lease_expires_at) if row.owner else None
        why = stage.ending_why
        locked.batch.rows[row.key] = writes.add(TASK.cancel, row, flow.ending_by or ENGINE, cause=why, detail=detail)
    writes.flush()
    return len(keys) == len(some)


def ask_to_stop(locked: LockedFlows, writes: PendingWrites, row: TaskRow, flow: FlowRow, stage: StageRow) -> None:
    """Tell a task's worker to stop; after the grace the task is taken from it."""
    now, grace_s = locked.batch.tx.now, locked.batch.policy(row).cancel_grace_s
    writes.put("set_cancel_at", key=row.key, at=now)
    writes.due(now + int(grace_s * SECOND), row.key, CANCEL, row.fence)
    writes.note(
        row, "task.cancel_requested", flow.ending_by or ENGINE, cause=stage.ending_why, trace=None,
        payload=event_detail(grace_s=grace_s),
    )  # fmt: skip
    locked.batch.rows[row.key] = row._replace(cancel_at=now)


def close(locked: LockedFlows, stage: StageRow, *, control: bool = True) -> None:
    """Let nothing more of a stage be claimed, its control task included or not.

    Waits for claims that are being made, and finds their rows gone.
    """
    tx, after = locked.batch.tx, 0
    while True:
        found = tx.query("queued_of_stage", stage=stage.key, after=after, most=int(control), limit=PAGE)
        if found:
            columns = zip(ReadyRow._fields, map(list, zip(*found, strict=True)), strict=True)
            tx.batch("delete_ready", dict(columns))
            after = found[-1].key
        if len(found) < PAGE:
            return


def release_tasks_of_stage(locked: LockedFlows, stage: StageRow) -> None:
    """Make the next tasks of an open stage claimable; the rest follows in further steps."""
    tx, after = locked.batch.tx, stage.opened_to or 0
    ((count, last),) = tx.query("next_to_open", stage=stage.key, after=after, limit=OPENED_AT_ONCE)
    more = count == OPENED_AT_ONCE
    if count:
        span = {"stage": stage.key, "after": after, "upto": last}
        tx.query("open_ready", at=tx.now, **span)
        tx.query("open_due", at=tx.now, what=RUN, **span)
        for (key,) in tx.query("policies_of_stage", **span):
            ttl_s = tx.names.policy(key).queue_ttl_s
            if ttl_s is not None:
                tx.query("open_ttl", at=tx.now, ttl=int(ttl_s * SECOND), what=QUEUE_TTL, policy=key, **span)
    locked.change(stage, opened_to=last if more else LAST_KEY)
    if more:
        PendingWrites(locked.batch).due_now(stage.key, OPEN_STAGE)
