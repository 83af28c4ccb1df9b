"""What PostgreSQL allows: one psycopg connection, one statement for the tasks of a batch, COPY to submit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import psycopg
from uuid_utils import uuid7

from benchmarks.events import Happened, Moved, write_events
from benchmarks.limit import LEASE_US, WORKER, Claimed, Numbers, prepare

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
SELECT key FROM new"""

COPY_TASK = """
COPY onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload) FROM STDIN"""
COPY_READY = "COPY onetray.ready (queue, rank, task, kind) FROM STDIN"

CLAIM = """
WITH picked AS (
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
)
SELECT key, version, fence, attempts, updated_at, id::text, kind, policy, payload, input, correlation_id, trace, lease
FROM moved"""

REPORT = """
UPDATE onetray.task AS t SET state = 'succeeded', version = t.version + 2,
    updated_at = greatest(%(now)s, t.updated_at), started_at = greatest(%(now)s, t.updated_at),
    finished_at = greatest(%(now)s, t.updated_at), owner = NULL, lease = NULL, result = NULL, error = NULL
FROM unnest(%(keys)s::bigint[], %(fences)s::integer[]) AS b(key, fence)
WHERE t.key = b.key AND t.fence = b.fence AND t.state = 'assigned'
RETURNING t.key, t.version, t.fence, t.attempts, t.updated_at"""


class PostgresLimit:
    def __init__(self, url: str, numbers: Numbers | None = None) -> None:
        self.numbers = numbers or prepare(url)
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        for name in BY_INDEX:
            self._connection.execute("SELECT set_config(%s, 'off', false)", (name,))

    def submit(self, payloads: list[dict[str, int]]) -> None:
        ids, bodies = [str(uuid7()) for _ in payloads], [orjson.dumps(p).decode() for p in payloads]
        if len(payloads) < COPY_FROM:
            self._insert(ids, bodies)
        else:
            self._copy(ids, bodies)

    def _insert(self, ids: list[str], bodies: list[str]) -> None:
        given = {"ids": ids, "payloads": bodies, "now": (now := _now())}
        with self._transaction():
            keys = self._connection.execute(SUBMIT, {**given, **self.numbers._asdict()}).fetchall()
            self._write(self.numbers.submitted(), [(key, 1, 1, 0, now) for (key,) in keys])

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
            self._write(self.numbers.submitted(), [(k, 1, 1, 0, now) for k in keys])

    def _lines(self, sql: str, lines: list[str]) -> None:
        # The benchmark's payloads hold nothing that COPY would have to escape.
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            copy.write("".join(lines))

    def claim(self, limit: int) -> Claimed:
        with self._transaction():
            return self._claim(limit)

    def report(self, claimed: Claimed) -> None:
        with self._transaction():
            self._report(claimed)

    def report_and_claim(self, claimed: Claimed, limit: int) -> Claimed:
        """The report of a batch and the claim of the next, in one transaction."""
        with self._transaction():
            self._report(claimed)
            return self._claim(limit)

    def _claim(self, limit: int) -> Claimed:
        given = {"limit": limit, "now": _now(), "worker": WORKER, "length": LEASE_US, **self.numbers._asdict()}
        tasks: list[Any] = self._connection.execute(CLAIM, given).fetchall()
        if tasks:
            self._write(self.numbers.claimed(), [task[:5] for task in tasks])
        return Claimed(tasks[0][-1] if tasks else 0, tasks)

    def _report(self, claimed: Claimed) -> None:
        keys, fences = [task[0] for task in claimed.tasks], [task[2] for task in claimed.tasks]
        given = {"keys": keys, "fences": fences, "now": _now()}
        moved: list[Any] = self._connection.execute(REPORT, given).fetchall()
        assert len(moved) == len(keys), "a guard of the limit did not hold"
        self._write(self.numbers.started(), [(key, version - 1, *rest) for key, version, *rest in moved])
        self._write(self.numbers.succeeded(), moved)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN goes with the first statement, COMMIT with the last: two round trips."""
        with self._connection.pipeline(), self._connection.transaction():
            yield

    def _write(self, happened: Happened, tasks: list[Moved]) -> None:
        write_events(lambda sql, given: self._connection.execute(sql.encode(), given), "postgres", happened, tasks)

    def close(self) -> None:
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1000
