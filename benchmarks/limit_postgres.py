"""What PostgreSQL allows: one psycopg connection, one statement for each claim and each report, COPY to submit."""

from __future__ import annotations

import time
from typing import Any

import orjson
import psycopg
from uuid_utils import uuid7

from benchmarks.limit import ACTOR, LEASE_US, SUBMITTER, WORKER, Claimed, Numbers, prepare

COPY_FROM = 50
BY_INDEX = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit")
"""Switched off: a fresh table has no statistics, and the planner would read all of it."""

SUBMIT = """
WITH new AS (
    INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts,
        spared, created_at, updated_at, run_at, state, payload)
    SELECT b.key, b.id, b.key, %(ns)s, %(queue)s, %(kind)s, %(policy)s, 1, 1, 0, 0, 3, 0, %(now)s, %(now)s, %(now)s,
        'queued', b.payload
    FROM (
        SELECT nextval('onetray.entity_key') AS key, id, payload
        FROM unnest(%(ids)s::uuid[], %(payloads)s::text[]) AS u(id, payload)
    ) AS b
    RETURNING key
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind) SELECT %(queue)s, 0, key, %(kind)s FROM new
)
INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor)
SELECT key, key, %(now)s, %(ns)s, 1, 1, 0, 'task.submitted', 'queued', %(actor)s FROM new"""

COPY_TASK = """
COPY onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload) FROM STDIN"""
COPY_READY = "COPY onetray.ready (queue, rank, task, kind) FROM STDIN"
COPY_EVENT = """
COPY onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor) FROM STDIN"""

_CLAIM = """
picked AS (
    SELECT r.queue, r.rank, r.task, t.version FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = r.task
    WHERE r.queue = %(queue)s ORDER BY r.queue, r.rank, r.task LIMIT %(limit)s FOR UPDATE OF r, t SKIP LOCKED
), taken AS (
    DELETE FROM onetray.ready AS r USING picked AS p WHERE r.queue = p.queue AND r.rank = p.rank AND r.task = p.task
), leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, part)
    SELECT nextval('onetray.lease_key'), %(ns)s, %(worker)s, %(now)s + %(length)s::bigint, %(length)s, keys, 0
    FROM (SELECT '[' || string_agg(task::text, ',') || ']' AS keys FROM picked) AS k WHERE keys IS NOT NULL
    RETURNING key
), moved AS (
    UPDATE onetray.task AS t SET state = 'assigned', version = t.version + 1,
        updated_at = greatest(%(now)s, t.updated_at), attempts = t.attempts + 1, owner = %(worker)s, lease = l.key
    FROM picked AS p, leased AS l WHERE t.key = p.task AND t.version = p.version AND t.state = 'queued'
    RETURNING t.*
), written AS (
    INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor,
        correlation_id, trace)
    SELECT key, job, updated_at, ns, version, fence, attempts, 'task.claimed', 'queued', 'assigned', %(actor)s,
        correlation_id, trace
    FROM moved
)"""
_CLAIMED = (
    "SELECT key, fence, id::text, kind, policy, attempts, payload, input, correlation_id, trace, lease FROM moved"
)

_REPORT = """
done AS (
    UPDATE onetray.task AS t SET state = 'succeeded', version = t.version + 2,
        updated_at = greatest(%(now)s, t.updated_at), started_at = greatest(%(now)s, t.updated_at),
        finished_at = greatest(%(now)s, t.updated_at), owner = NULL, lease = NULL, result = NULL, error = NULL
    FROM unnest(%(keys)s::bigint[], %(fences)s::integer[]) AS b(key, fence)
    WHERE t.key = b.key AND t.fence = b.fence AND t.state = 'assigned'
    RETURNING t.key, t.job, t.updated_at, t.ns, t.version, t.fence, t.attempts, t.correlation_id, t.trace
), told AS (
    INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor,
        correlation_id, trace)
    SELECT key, job, updated_at, ns, version + hop.n, fence, attempts, hop.type, hop.was, hop.state, %(actor)s,
        correlation_id, trace
    FROM done CROSS JOIN (VALUES (-1, 'task.started', 'assigned', 'running'),
        (0, 'task.succeeded', 'running', 'succeeded')) AS hop(n, type, was, state)
    ORDER BY key, hop.n
)"""

CLAIM = f"WITH {_CLAIM} {_CLAIMED}"
REPORT = f"WITH {_REPORT} SELECT count(*) FROM done"
FUSED = f"WITH {_REPORT}, {_CLAIM} {_CLAIMED}"
"""Reports a batch and claims the next in one statement. It reads only ready tasks, so the two cannot meet."""


class PostgresLimit:
    def __init__(self, url: str, numbers: Numbers | None = None) -> None:
        self.numbers = numbers or prepare(url)
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        for name in BY_INDEX:
            self._connection.execute("SELECT set_config(%s, 'off', false)", (name,))

    def submit(self, payloads: list[dict[str, int]]) -> None:
        ids, bodies = [str(uuid7()) for _ in payloads], [orjson.dumps(p).decode() for p in payloads]
        if len(payloads) < COPY_FROM:
            given = {"ids": ids, "payloads": bodies, "now": _now(), "actor": SUBMITTER}
            self._connection.execute(SUBMIT, {**given, **self.numbers._asdict()})
        else:
            self._copy(ids, bodies)

    def _copy(self, ids: list[str], bodies: list[str]) -> None:
        (ns, queue, kind, policy), now = self.numbers, _now()
        with self._connection.transaction():
            sql = "SELECT nextval('onetray.entity_key') FROM generate_series(1, %s)"
            keys = [key for (key,) in self._connection.execute(sql, (len(ids),))]
            self._lines(COPY_TASK, [
                f"{k}\t{id_}\t{k}\t{ns}\t{queue}\t{kind}\t{policy}\t1\t1\t0\t0\t3\t0\t{now}\t{now}\t{now}\tqueued\t{body}\n"
                for k, id_, body in zip(keys, ids, bodies, strict=True)
            ])  # fmt: skip
            self._lines(COPY_READY, [f"{queue}\t0\t{k}\t{kind}\n" for k in keys])
            event = f"{now}\t{ns}\t1\t1\t0\ttask.submitted\tqueued\t{SUBMITTER}\n"
            self._lines(COPY_EVENT, [f"{k}\t{k}\t{event}" for k in keys])

    def _lines(self, sql: str, lines: list[str]) -> None:
        # The benchmark's payloads hold nothing that COPY would have to escape.
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            copy.write("".join(lines))

    def claim(self, limit: int) -> Claimed:
        return self._claimed(CLAIM, self._claim_of(limit))

    def report(self, claimed: Claimed) -> None:
        moved: Any = self._connection.execute(REPORT, _report_of(claimed)).fetchone()
        assert moved[0] == len(claimed.tasks), "a guard of the limit did not hold"

    def report_and_claim(self, claimed: Claimed, limit: int) -> Claimed:
        """The report of a batch and the claim of the next, in one transaction."""
        return self._claimed(FUSED, {**self._claim_of(limit), **_report_of(claimed)})

    def _claim_of(self, limit: int) -> dict[str, Any]:
        given = {"limit": limit, "now": _now(), "worker": WORKER, "actor": ACTOR, "length": LEASE_US}
        return {**given, **self.numbers._asdict()}

    def _claimed(self, sql: str, given: dict[str, Any]) -> Claimed:
        tasks = self._connection.execute(sql, given).fetchall()
        return Claimed(tasks[0][-1] if tasks else 0, tasks)

    def close(self) -> None:
        self._connection.close()


def _report_of(claimed: Claimed) -> dict[str, Any]:
    keys, fences = [t[0] for t in claimed.tasks], [t[1] for t in claimed.tasks]
    return {"keys": keys, "fences": fences, "now": _now(), "actor": ACTOR}


def _now() -> int:
    return time.time_ns() // 1000
