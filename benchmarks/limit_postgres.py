"""What PostgreSQL allows: one psycopg connection, one statement for the tasks of a batch, COPY to submit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import psycopg
from uuid_utils import uuid7

from benchmarks.events import Happened, Moved, in_blocks, write_events
from benchmarks.limit import LEASE_US, WORKER, Claimed, Numbers, after_success, before_success, prepare
from onetray.store.event_log import BLOCK

COPY_FROM = 50
BY_INDEX = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit")
"""Switched off: a fresh table has no statistics, and the planner would read all of it."""

SUBMIT = """
WITH at AS (SELECT nextval('onetray.event_id') AS id), given AS (
    SELECT nextval('onetray.entity_key') AS key, at.id + place - 1 AS event, u.id, payload
    FROM at, unnest(%(ids)s::uuid[], %(payloads)s::text[]) WITH ORDINALITY AS u(id, payload, place)
), new AS (
    INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts,
        spared, created_at, updated_at, run_at, state, payload, events)
    SELECT b.key, b.id, b.key, %(ns)s, %(queue)s, %(kind)s, %(policy)s, 1, 1, 0, 0, 3, 0, %(now)s, %(now)s, %(now)s,
        'queued', b.payload, b.event
    FROM given AS b
    RETURNING key
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind) SELECT %(queue)s, 0, key, %(kind)s FROM new
)
SELECT key FROM given ORDER BY event"""

COPY_TASK = """
COPY onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload, events) FROM STDIN"""
COPY_READY = "COPY onetray.ready (queue, rank, task, kind) FROM STDIN"
NUMBERS = """
SELECT ARRAY(SELECT nextval('onetray.entity_key') FROM generate_series(1, %s)),
    ARRAY(SELECT nextval('onetray.event_id') FROM generate_series(1, %s))"""

CLAIM = """
WITH at AS (SELECT nextval('onetray.event_id') AS id), picked AS (
    SELECT r.queue, r.rank, r.task, t.version FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = r.task
    WHERE r.queue = %(queue)s ORDER BY r.queue, r.rank, r.task LIMIT %(limit)s FOR UPDATE OF r, t SKIP LOCKED
), placed AS (
    SELECT task, version, row_number() OVER () - 1 AS place FROM picked
), taken AS (
    DELETE FROM onetray.ready AS r USING picked AS p WHERE r.queue = p.queue AND r.rank = p.rank AND r.task = p.task
), leased AS (
    INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, part)
    SELECT nextval('onetray.lease_key'), %(ns)s, %(worker)s, %(now)s + %(length)s::bigint, %(length)s, keys, 0
    FROM (SELECT '[' || string_agg(task::text, ',') || ']' AS keys FROM picked) AS k WHERE keys IS NOT NULL
    RETURNING key
), moved AS (
    UPDATE onetray.task AS t SET state = 'assigned', version = t.version + 1,
        updated_at = greatest(%(now)s, t.updated_at), attempts = t.attempts + 1, owner = %(worker)s, lease = l.key,
        events = t.events || ',' || (at.id + p.place)
    FROM at, placed AS p, leased AS l WHERE t.key = p.task AND t.version = p.version AND t.state = 'queued'
    RETURNING t.*, p.place
)
SELECT key, version, fence, attempts, updated_at, id::text, kind, policy, payload, input, correlation_id, trace, lease
FROM moved ORDER BY place"""

REPORT = """
WITH at AS (SELECT nextval('onetray.event_id') AS id), moved AS (
    UPDATE onetray.task AS t SET state = 'succeeded', version = t.version + 2,
        updated_at = greatest(%(now)s, t.updated_at), started_at = greatest(%(now)s, t.updated_at),
        finished_at = greatest(%(now)s, t.updated_at), owner = NULL, lease = NULL, result = NULL, error = NULL,
        events = t.events || ',' || (at.id + b.place - 1) || ',' || (at.id + %(size)s::bigint + b.place - 1)
    FROM at, unnest(%(keys)s::bigint[], %(fences)s::integer[]) WITH ORDINALITY AS b(key, fence, place)
    WHERE t.key = b.key AND t.fence = b.fence AND t.state = 'assigned'
    RETURNING 1
)
SELECT count(*) / CASE count(*) WHEN %(size)s THEN 1 ELSE 0 END FROM moved"""
"""Divides by zero where a guard does not hold, so that COMMIT can be sent behind it."""


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
            numbers = self._connection.execute(NUMBERS, (len(ids), -(-len(ids) // BLOCK))).fetchall()
            ((keys, blocks),) = numbers
            rest = f"{ns}\t{queue}\t{kind}\t{policy}\t1\t1\t0\t0\t3\t0\t{now}\t{now}\t{now}\tqueued"
            events = (event for block in blocks for event in range(block, block + BLOCK))
            self._lines(COPY_TASK, [
                f"{k}\t{id_}\t{k}\t{rest}\t{body}\t{event}\n"
                for k, id_, body, event in zip(keys, ids, bodies, events, strict=False)
            ])  # fmt: skip
            self._lines(COPY_READY, [f"{queue}\t0\t{k}\t{kind}\n" for k in keys])
            with self._connection.pipeline():
                for block, part in zip(blocks, in_blocks(keys), strict=True):
                    self._write(self.numbers.submitted(), [(k, 1, 1, 0, now) for k in part], event=block)

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
        claimed: Claimed = []
        while len(claimed) < limit:
            most = min(BLOCK, limit - len(claimed))
            given = {"limit": most, "now": _now(), "worker": WORKER, "length": LEASE_US, **self.numbers._asdict()}
            tasks: Claimed = self._connection.execute(CLAIM, given).fetchall()
            if tasks:
                self._write(self.numbers.claimed(), [task[:5] for task in tasks])
            claimed += tasks
            if len(tasks) < most:
                break
        return claimed

    def _report(self, claimed: Claimed) -> None:
        for held in in_blocks(claimed, events_each=2):
            keys, fences, now = [task[0] for task in held], [task[2] for task in held], _now()
            self._connection.execute(REPORT, {"keys": keys, "fences": fences, "now": now, "size": len(held)})
            moved = after_success(held, now)
            self._write(self.numbers.started(), before_success(moved))
            self._write(self.numbers.succeeded(), moved, place=len(held))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN goes with the first statement, COMMIT with the last: one round trip, and one for each claim."""
        with self._connection.pipeline(), self._connection.transaction():
            yield

    def _write(self, happened: Happened, tasks: list[Moved], event: int | None = None, place: int = 0) -> None:
        """By default with the ids that the statement before has taken."""
        execute = self._connection.execute
        write_events(lambda sql, given: execute(sql.encode(), given), "postgres", happened, tasks, event, place)

    def close(self) -> None:
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1000
