"""A drain's history on PostgreSQL, by hand: one statement for the tasks of each move, COPY for submits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import psycopg
from uuid_utils import uuid7

from benchmarks.limit import ACTOR, SUBMITTER, WORKER
from benchmarks.limit_postgres import BY_INDEX
from benchmarks.log_shapes import Encoding
from benchmarks.log_writes import KIND, LEASE, NS, POLICY, QUEUE, SCHEMA, Held, Log, Moved
from onetray.store.schema import migration

_COPY_TASK = """
COPY onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload{link}) FROM STDIN"""
_COPY_READY = "COPY onetray.ready (queue, rank, task, kind) FROM STDIN"
_COPY_EVENT = "COPY onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor) FROM STDIN"
_CLAIM = """
WITH picked AS (
    SELECT r.queue, r.rank, r.task, t.version, {old} AS old
    FROM onetray.ready AS r JOIN onetray.task AS t ON t.key = r.task
    WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit FOR UPDATE OF r, t SKIP LOCKED
), placed AS (
    SELECT picked.*, row_number() OVER (ORDER BY task) - 1 AS place FROM picked
), taken AS (
    DELETE FROM onetray.ready AS r USING picked AS p WHERE r.queue = p.queue AND r.rank = p.rank AND r.task = p.task
), moved AS (
    UPDATE onetray.task AS t SET state = 'assigned', version = t.version + 1,
        updated_at = greatest(:now, t.updated_at), attempts = t.attempts + 1, owner = :worker, lease = :lease {link}
    FROM placed AS p WHERE t.key = p.task AND t.version = p.version AND t.state = 'queued'
    RETURNING t.key, t.job, t.ns, t.version, t.fence, t.attempts, t.updated_at, t.correlation_id, t.trace,
        p.place, p.old
) {written}
SELECT key, version, fence, attempts, updated_at, old FROM moved ORDER BY place"""
_CLAIM_EVENTS = """
, told AS (
    INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor,
        correlation_id, trace)
    SELECT key, job, updated_at, ns, version, fence, attempts, 'task.claimed', 'queued', 'assigned', :actor,
        correlation_id, trace
    FROM moved
)"""
_REPORT = """
WITH moved AS (
    UPDATE onetray.task AS t SET state = 'succeeded', version = t.version + 2,
        updated_at = greatest(:now, t.updated_at), started_at = greatest(:now, t.updated_at),
        finished_at = greatest(:now, t.updated_at), owner = NULL, lease = NULL, result = NULL, error = NULL {link}
    FROM unnest(CAST(:keys AS bigint[]), CAST(:fences AS integer[])) WITH ORDINALITY AS b(key, fence, place) {join}
    WHERE t.key = b.key AND t.fence = b.fence AND t.state = 'assigned'
    RETURNING t.key, t.job, t.ns, t.version, t.fence, t.attempts, t.updated_at, t.correlation_id, t.trace,
        b.place, {old} AS old
) {written}
SELECT key, version, fence, attempts, updated_at, old FROM moved ORDER BY place"""
_REPORT_EVENTS = """
, told AS (
    INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor,
        correlation_id, trace)
    SELECT key, job, updated_at, ns, version + hop.n, fence, attempts, hop.type, hop.was, hop.state, :actor,
        correlation_id, trace
    FROM moved CROSS JOIN (VALUES (-1, 'task.started', 'assigned', 'running'),
        (0, 'task.succeeded', 'running', 'succeeded')) AS hop(n, type, was, state)
    ORDER BY key, hop.n
)"""
_CHAIN = {
    "copied": ", last_event",
    "claim": {"old": "t.last_event", "link": ", last_event = :event + p.place"},
    "report": {
        "old": "o.last_event",
        "link": ", last_event = :event + :count + b.place - 1",
        "join": "JOIN onetray.task AS o ON o.key = b.key",
    },
}
_IDS = {
    "copied": ", events",
    "claim": {"old": "0", "link": ", events = t.events || ',' || (:event + p.place)"},
    "report": {
        "old": "0",
        "link": ", events = t.events || ',' || (:event + b.place - 1) || ',' || (:event + :count + b.place - 1)",
        "join": "",
    },
}
_NO_LINK = {"copied": "", "claim": {"old": "0", "link": ""}, "report": {"old": "0", "link": "", "join": ""}}


_SCHEMA = "by_hand"
"""Beside the product's tables, where the database has them."""


@cache
def _here(sql: str) -> bytes:
    """In the schema of this measurement, with parameters as psycopg names them."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", sql.replace("onetray.", f"{_SCHEMA}.")).encode()


class PostgresLog(Log):
    store = "postgres"

    def __init__(self, url: str, encoding: Encoding) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute(f"CREATE SCHEMA {_SCHEMA}".encode())
        self._connection.execute(_here(migration("postgres", SCHEMA)), prepare=False)
        for name in BY_INDEX:
            self._connection.execute("SELECT set_config(%s, 'off', false)", (name,))
        by_row = encoding.shape is None
        words: Any = _NO_LINK if by_row else _IDS if encoding.ids else _CHAIN
        self._copy_task = _COPY_TASK.format(link=words["copied"])
        self._claim = _CLAIM.format(**words["claim"], written=_CLAIM_EVENTS if by_row else "")
        self._report = _REPORT.format(**words["report"], written=_REPORT_EVENTS if by_row else "")
        super().__init__(encoding)

    def query(self, sql: str, **given: Any) -> list[Any]:
        cursor = self._connection.execute(_here(sql), given or None)
        return cursor.fetchall() if cursor.description else []

    def transaction(self) -> AbstractContextManager[Any]:
        return self._connection.transaction()

    def insert_tasks(self, first: int, ranks: Sequence[int], event: int, now: int) -> None:
        keys = range(first, first + len(ranks))
        last = "\t{}" if self.shape else ""
        rest = f"{NS}\t{QUEUE}\t{KIND}\t{POLICY}\t1\t1\t0\t0\t3\t0\t{now}\t{now}\t{now}\tqueued"
        self._lines(self._copy_task, [
            f'{key}\t{uuid7()}\t{key}\t{rest}\t{{"i":{key}}}{last.format(event + place)}\n'
            for place, key in enumerate(keys)
        ])  # fmt: skip
        self._lines(_COPY_READY, [
            f"{QUEUE}\t{rank}\t{key}\t{KIND}\n" for rank, key in zip(ranks, keys, strict=True)
        ])  # fmt: skip
        if self.shape is None:
            told = f"{now}\t{NS}\t1\t1\t0\ttask.submitted\tqueued\t{SUBMITTER}\n"
            self._lines(_COPY_EVENT, [f"{key}\t{key}\t{told}" for key in keys])

    def _lines(self, sql: str, lines: list[str]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(_here(sql)) as copy:
            copy.write("".join(lines))

    def assign(self, limit: int, event: int, now: int) -> list[Moved]:
        given = {"queue": QUEUE, "limit": limit, "now": now, "worker": WORKER, "lease": LEASE, "event": event}
        return self.query(self._claim, **given, actor=ACTOR)

    def succeed(self, held: Sequence[Held], event: int, now: int) -> list[Moved]:
        keys, fences = map(list, zip(*held, strict=True))
        given = {"keys": keys, "fences": fences, "now": now, "event": event, "count": len(held)}
        moved = self.query(self._report, **given, actor=ACTOR)
        assert len(moved) == len(held), "a guard did not hold"
        return moved

    def log_bytes(self) -> int:
        table = "onetray.event" if self.shape is None else "onetray.event_batch"
        return int(self.query(f"SELECT pg_total_relation_size('{table}')")[0][0])

    def close(self) -> None:
        self._connection.execute(f"DROP SCHEMA {_SCHEMA} CASCADE".encode())
        self._connection.close()
