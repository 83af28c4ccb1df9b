"""Claim the only claimable task of a queue on SQLite: the statements of a claim, without a batch around them.

Owns them. In an idle process Python takes as long as the disk, and most of a claim of one task was making lists of one
item. As on PostgreSQL (fast_claim_postgres.py) it takes the task only if nothing else is to be decided about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onetray.domain.errors import GuardFailed
from onetray.domain.lifecycle import TASK
from onetray.store.base import LoneClaim, LoneTask
from onetray.store.event_log import NO_ENTRY, PAGE
from onetray.store.move_sql import move_of
from onetray.store.rows import ClaimedRow
from onetray.store.sql_template import SQLITE, render, single_row, statement_of

if TYPE_CHECKING:
    import apsw

PICK = render(
    "pick_one",
    """{select_claimable} WHERE r.queue = :queue AND {past_breakers} AND {unlimited}
AND NOT EXISTS (SELECT 1 FROM onetray.lease WHERE lease.ns = :ns AND lease.worker = :worker
    AND lease.request_key = :request_key)
ORDER BY r.queue, r.rank, r.task LIMIT 2""",
    SQLITE,
    (),
).sql
NEW_LEASE = "UPDATE counter SET value = value + 1 WHERE name = 'lease_key' RETURNING value"
_INSERT_LEASE, _DELETE_READY = (single_row(name, SQLITE).sql for name in ("insert_lease", "delete_ready"))
_MOVE = move_of((TASK.claim,), SQLITE, frozenset({"key", "version", "worker", "lease", "at"})).sql
_LOG = statement_of("insert_event_batch", SQLITE).sql
_EVENT = {
    **NO_ENTRY, "type": TASK.claim.event, "was": TASK.claim.sources[0], "state": TASK.claim.target, "place": 0,
}  # fmt: skip


def pick_one(connection: apsw.Connection, claim: LoneClaim, now: int) -> tuple[ClaimedRow, int] | None:
    """The task that is alone in the queue, and the length of its lease. None if the claim has to run as any other."""
    found: list[Any] = connection.execute(PICK, {
        "queue": claim.queue, "past_breakers": 0, "ns": claim.ns, "worker": claim.worker,
        "request_key": claim.request_key, "now": now,
    }).fetchall()  # fmt: skip
    if len(found) != 1:
        return None
    row = ClaimedRow(*found[0])
    if row.stage is not None or row.lane is not None or row.version + 1 >= PAGE:
        return None
    if row.policy not in claim.policies or (claim.kinds is not None and row.kind not in claim.kinds):
        return None
    return row, claim.lengths[claim.policies.index(row.policy)]


def take_one(
    connection: apsw.Connection, claim: LoneClaim, row: ClaimedRow, length: int, at: int, event: int
) -> LoneTask:
    """Write the claim of a picked task, with its lease, under the id of a new event."""
    lease: Any = connection.execute(NEW_LEASE).get
    columns: dict[str, Any] = {
        "key": lease, "ns": claim.ns, "worker": claim.worker, "expires_at": at + length, "length": length,
        "tasks": f"[{row.key}]", "request_key": claim.request_key, "part": 0, "expiry_counts": claim.expiry_counts,
    }  # fmt: skip
    connection.execute(_INSERT_LEASE, columns)
    columns |= {"key": row.key, "queue": claim.queue, "rank": row.rank, "kind": row.kind}
    connection.execute(_DELETE_READY, columns)
    columns |= {"lease": lease, "version": row.version, "at": at, "event": event}
    connection.execute(_MOVE, columns)
    if connection.changes() != 1:
        raise GuardFailed("the claim of one task did not change it")
    connection.execute(_LOG, {
        **_EVENT, "event": event, "ts": at, "ns": claim.ns, "actor": claim.actor, "entity": row.key,
        "version": row.version + 1, "fence": row.fence, "attempts": row.attempts + 1,
    })  # fmt: skip
    return LoneTask(row._replace(seen_at=at), lease, length)
