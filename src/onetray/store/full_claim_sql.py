"""Claim as many tasks as a claim wants in one statement of PostgreSQL: most claims of a busy worker find that many.

Owns that statement. It takes the tasks only if they are as many as wanted, all alike, and nothing else is to be decided
about them; otherwise it only locks them, and the claim takes its usual way with what it has found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onetray.domain.lifecycle import TASK
from onetray.store.base import FullClaim
from onetray.store.event_log import PAGE
from onetray.store.move_sql import update_of
from onetray.store.rows import ClaimedRow
from onetray.store.sql_template import POSTGRES, fill, quoted, render, with_parameters, words_of

if TYPE_CHECKING:
    from onetray.store.base import LoneClaim, Rows
    from onetray.store.low_water import LowWater

FREE_REQUEST = """NOT EXISTS (SELECT 1 FROM onetray.lease WHERE lease.ns = :ns AND lease.worker = :worker
            AND lease.request_key = :request_key)"""
HOP = quoted([TASK.claim.event, *TASK.claim.sources, TASK.claim.target])
"""The columns type, was and state of a claim's event."""
CLAIMED = ", ".join(f"p.{name}" for name in ClaimedRow._fields)

# As claim_head does it.
_PICKED = """picked AS MATERIALIZED (
    {columns_of_claimable}, r.place
    FROM (
        SELECT r.rank, r.task, r.ctid AS place FROM onetray.ready AS r
        WHERE r.queue = :queue AND (r.rank, r.task) >= (:rank, :task) AND {past_breakers} AND {unlimited}
            AND {unlocked_r}
        ORDER BY r.queue, r.rank, r.task LIMIT :limit {skip_locked_r}
    ) AS r JOIN onetray.task AS t ON t.key = {task_of_r} {skip_locked_t}
)"""
_NUMBERED = """numbered AS MATERIALIZED (
    SELECT p.key, p.place, p.kind, p.version, p.fence, p.attempts, p.stage, p.lane, p.seen_at,
        row_number() OVER (ORDER BY p.rank, p.key) - 1 AS nth,
        (:lengths::bigint[])[array_position(:policies::integer[], p.policy)] AS length
    FROM picked AS p
)"""
# The ids are taken after the locks, so that those of an entity's events rise.
_ALIKE = f"""alike AS MATERIALIZED (
    SELECT min(n.version) AS version, min(n.fence) AS fence, min(n.attempts) AS attempts, min(n.length) AS length,
        greatest(max(n.seen_at), :since) AS at, min(n.key) AS first, min(n.key - n.nth) = max(n.key - n.nth) AS in_row,
        string_agg(CAST(n.key AS text), ',' ORDER BY n.nth) AS keys,
        nextval('onetray.lease_key') AS lease, nextval('onetray.event_id') AS event
    FROM numbered AS n
    HAVING count(*) = :limit AND count(n.length) = :limit AND count(n.stage) = 0 AND count(n.lane) = 0
        AND min(n.length) = max(n.length) AND min(n.version) = max(n.version) AND max(n.version) + 1 < {PAGE}
        AND min(n.fence) = max(n.fence) AND min(n.attempts) = max(n.attempts)
        AND (:kinds::integer[] IS NULL OR bool_and(n.kind = ANY(:kinds::integer[])))
        AND {FREE_REQUEST}
)"""
_BATCH = """batch AS MATERIALIZED (
    SELECT n.key, n.place, a.version, a.at, a.lease, a.event + n.nth AS event FROM alike AS a, numbered AS n
)"""
_LEASED = """leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
    SELECT a.lease, :ns, :worker, a.at + a.length, a.length, '[' || a.keys || ']', :request_key, 0, :expiry_counts
    FROM alike AS a
)"""
# The keys are not in `varied` if each is the one before it plus one: see encode_batch.
_LOGGED = f"""logged AS (
    INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, version, fence, attempts,
        varied)
    SELECT a.event, :limit, a.at, :ns, {HOP}, :actor, CASE WHEN a.in_row THEN a.first END, a.version + 1, a.fence,
        a.attempts + 1, CASE WHEN NOT a.in_row THEN '{{"entity":[' || a.keys || ']}}' END
    FROM alike AS a
)"""


def moved(batch: str) -> str:
    """The guarded UPDATE of a claim, for a batch with the ids of its events."""
    update = with_parameters("claim_one", update_of((TASK.claim,)), POSTGRES, frozenset({"worker"}))
    words = {"from_batch": f"FROM {batch} AS b", "event_id": "CAST(b.event AS text)"}
    return f"moved AS ({fill(update, words)} RETURNING 1)"


def deleted(batch: str) -> str:
    return f"""deleted AS (
    DELETE FROM onetray.ready WHERE ready.ctid = ANY(ARRAY(SELECT b.place FROM {batch} AS b)) RETURNING 1
)"""


def guarded(batch: str) -> str:
    """Fails, and so takes nothing, if a guard did not hold."""
    return f"""1 / CASE WHEN (SELECT count(*) FROM moved) = (SELECT count(*) FROM {batch})
        AND (SELECT count(*) FROM deleted) = (SELECT count(*) FROM {batch}) THEN 1 ELSE 0 END"""


_PARTS = (_PICKED, _NUMBERED, _ALIKE, _BATCH, moved("batch"), _LEASED, deleted("batch"), _LOGGED)
# Once, in the row of the first key: the client would read the same numbers a thousand times.
_FOUND = f"""
SELECT {CLAIMED}, CASE WHEN p.key = a.first THEN concat_ws(',', a.lease, a.length, a.at, {guarded("batch")}) END
FROM picked AS p LEFT JOIN alike AS a ON true"""
CLAIM_FULL = render("claim_full", fill(f"WITH {', '.join(_PARTS)}{_FOUND}", words_of(POSTGRES)), POSTGRES, ())


def params_of(claim: LoneClaim) -> dict[str, Any]:
    """The parameters that the claim itself has."""
    return {
        "queue": claim.queue, "past_breakers": 0, "ns": claim.ns, "worker": claim.worker,
        "request_key": claim.request_key, "actor": claim.actor, "kinds": claim.kinds,
        "expiry_counts": claim.expiry_counts, "policies": claim.policies, "lengths": claim.lengths,
    }  # fmt: skip


def full_claim_query(
    claim: LoneClaim, limit: int, low: LowWater, now: int | None, since: int | None
) -> tuple[str, dict[str, Any]]:
    """The statement for a claim that starts at the mark. `since` is the time of the transaction so far."""
    place = {"rank": low.rank, "task": low.task, "limit": limit}
    return CLAIM_FULL.sql, {**params_of(claim), **place, "now": now, "since": since or 0}


def full_claim_of(found: Rows) -> tuple[list[ClaimedRow], FullClaim | None]:
    """The tasks that it has locked, in the order of the queue, and the claim if it has taken them."""
    # Not ClaimedRow(*columns), which takes twice as long: these are most of the rows that a worker reads.
    new = tuple.__new__
    rows = [new(ClaimedRow, columns) for *columns, _ in found]
    rows.sort()
    taken = next((claim for *_, claim in found if claim is not None), None)
    if taken is None:
        return rows, None
    lease, length, at, _ = map(int, taken.split(","))
    return rows, FullClaim(rows, lease, length, at)
