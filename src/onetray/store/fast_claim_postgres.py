"""Claim the only claimable task of a queue on PostgreSQL in one round trip: it stands between a job and an idle worker.

Owns that statement. It takes the task only if it is alone, belongs to no flow, and nothing else is to be decided about
it; otherwise it changes nothing, and the claim takes its usual way (postgres_tx.py), which needs three round trips.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from onetray.notify.new_work import NewWork
from onetray.store.base import LoneClaim, LoneTask
from onetray.store.commit_check import CommitOutcome
from onetray.store.event_log import PAGE
from onetray.store.full_claim_sql import CLAIMED, FREE_REQUEST, HOP, deleted, guarded, moved, params_of
from onetray.store.low_water import LowWater
from onetray.store.pg_pipeline import is_refused, run_queries
from onetray.store.postgres_tx import PREPARE, REQUEST_LOCK, request_name
from onetray.store.rows import ClaimedRow
from onetray.store.sql_template import POSTGRES, fill, render, words_of

if TYPE_CHECKING:
    from onetray.store.postgres import PostgresStore

# Two rows tell whether there is more than one task. A request that ran already, or runs at this moment, takes none.
_PICKED = """picked AS MATERIALIZED (
    {columns_of_claimable}, r.place, clock_timestamp() - statement_timestamp() AS took
    FROM (
        SELECT r.rank, r.task, r.ctid AS place FROM onetray.ready AS r
        WHERE r.queue = :queue AND {past_breakers} AND {unlimited}
        ORDER BY r.queue, r.rank, r.task LIMIT 2 {skip_locked_r}
    ) AS r JOIN onetray.task AS t ON t.key = {task_of_r} {skip_locked_t}
)"""
_LONE = f"""lone AS MATERIALIZED (
    SELECT p.key, p.version, p.fence, p.attempts, p.seen_at AS at, p.place, y.length,
        nextval('onetray.lease_key') AS lease, nextval('onetray.event_id') AS event
    FROM picked AS p JOIN unnest(:policies::integer[], :lengths::bigint[]) AS y(policy, length) ON y.policy = p.policy
    WHERE (SELECT count(*) FROM picked) = 1 AND p.stage IS NULL AND p.lane IS NULL AND p.version + 1 < {PAGE}
        AND (:kinds::integer[] IS NULL OR p.kind = ANY(:kinds::integer[]))
        AND {FREE_REQUEST}
        AND {REQUEST_LOCK.replace("pg_advisory", "pg_try_advisory")}
)"""
_LEASED = """leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, request_key, part, expiry_counts)
    SELECT b.lease, :ns, :worker, b.at + b.length, b.length, '[' || b.key || ']', :request_key, 0, :expiry_counts
    FROM lone AS b
)"""
_LOGGED = f"""logged AS (
    INSERT INTO onetray.event_batch (id, size, ts, ns, type, was, state, actor, entity, version, fence, attempts)
    SELECT b.event, 1, b.at, :ns, {HOP}, :actor, b.key,
        b.version + 1, b.fence, b.attempts + 1
    FROM lone AS b
)"""
_PARTS = (_PICKED, _LONE, moved("lone"), _LEASED, deleted("lone"), _LOGGED)
_FOUND = f"""
SELECT {CLAIMED}, l.lease, l.length, date_part('epoch', p.took), {guarded("lone")}
FROM picked AS p LEFT JOIN lone AS l ON l.key = p.key"""
CLAIM_ONE = render(
    "claim_one",
    fill(f"WITH {', '.join(_PARTS)}{_FOUND}", words_of(POSTGRES)),
    POSTGRES,
    (),
)


def claim_one_postgres(store: PostgresStore, claim: LoneClaim) -> LoneTask | None:
    """Claim a task, if it is alone in the queue. See Store.claim_one."""
    low = store.low_water.setdefault(claim.queue, LowWater())
    if time.monotonic() - low.scanned_at < low.rest_s():
        # While an old snapshot is open, scans from the start of the queue are slow: the usual way begins at the mark.
        return None
    entries, now = low.entries, store.clock.now() if store.clock else None
    params = {**params_of(claim), "now": now, "request": request_name(claim.worker, claim.request_key or "")}
    with store.connection() as connection:
        connection.warnings.seen = False
        try:
            _, found = run_queries(connection, [(PREPARE, {"now": now}), (CLAIM_ONE.sql, params)])
        except psycopg.Error as e:
            low.reset()
            if not is_refused(e):
                connection.close()
            # The usual way finds out whether it was written, under its request key; or it fails as well.
            return None
        has_warned = connection.warnings.seen
    low.scanned_at = time.monotonic()
    if not found:
        return None
    *columns, lease, length, took_s, _ = found[0]
    low.costs.append(took_s)
    if lease is None:
        # Other claims have skipped what this one had locked.
        low.reset()
        return None
    row = ClaimedRow(*columns)
    low.move_to((row.rank, row.key), entries)
    if has_warned:
        store.resolve(lambda _: CommitOutcome.WRITTEN)
    store.run_commit_hooks(NewWork())
    return LoneTask(row, lease, length)
