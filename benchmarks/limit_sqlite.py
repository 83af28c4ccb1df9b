"""What SQLite allows: one apsw connection, sets of keys passed as one JSON value."""

from __future__ import annotations

import time
from typing import Any

import apsw
import orjson
from uuid_utils import uuid7

from benchmarks.events import Happened, Moved, write_events
from benchmarks.limit import LEASE_US, WORKER, Claimed, Numbers, after_success, before_success, prepare
from onetray.store import sqlite_connection
from onetray.store.sqlite import PRAGMAS

SUBMIT_TASK = """
INSERT INTO task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload, events)
SELECT value ->> 0, value ->> 1, value ->> 0, ?2, ?3, ?4, ?5, 1, 1, 0, 0, 3, 0, ?6, ?6, ?6, 'queued', value ->> 2,
    ?7 + json_each.key
FROM json_each(?1)"""
SUBMIT_READY = "INSERT INTO ready (queue, rank, task, kind) SELECT ?2, 0, value ->> 0, ?3 FROM json_each(?1)"

PICK = """
SELECT t.key, t.version + 1, t.fence, t.attempts + 1, max(:now, t.updated_at), t.id, t.kind, t.policy, t.payload,
    t.input, t.correlation_id, t.trace
FROM ready AS r JOIN task AS t ON t.key = r.task WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit"""
TAKE = """
DELETE FROM ready WHERE (queue, rank, task) IN
    (SELECT queue, rank, task FROM ready WHERE queue = ? ORDER BY queue, rank, task LIMIT ?)"""
ASSIGN = """
UPDATE task SET state = 'assigned', version = version + 1, updated_at = max(?1, updated_at), attempts = attempts + 1,
    owner = ?2, lease = ?3, events = events || ',' || (?5 + b.key)
FROM json_each(?4) AS b WHERE task.key = b.value AND state = 'queued'"""
LEASE = "INSERT INTO lease (key, ns, worker, expires_at, length, tasks, part) VALUES (?, ?, ?, ?, ?, ?, 0)"
NEXT = "UPDATE counter SET value = value + ? WHERE name = ? RETURNING value"

SUCCEED = """
UPDATE task SET state = 'succeeded', version = version + 2, updated_at = max(?1, updated_at),
    started_at = max(?1, updated_at), finished_at = max(?1, updated_at), owner = NULL, lease = NULL, result = NULL,
    error = NULL, events = events || ',' || (?3 + b.key) || ',' || (?3 + ?4 + b.key)
FROM json_each(?2) AS b WHERE task.key = b.value ->> 0 AND task.fence = b.value ->> 1 AND task.state = 'assigned'"""


class SqliteLimit:
    def __init__(self, url: str, numbers: Numbers | None = None) -> None:
        self.numbers = numbers or prepare(url)
        self._connection = apsw.Connection(url.removeprefix("sqlite:///"))
        sqlite_connection.prepare(self._connection, PRAGMAS)

    def submit(self, payloads: list[dict[str, int]]) -> None:
        execute, (ns, queue, kind, policy), now = self._connection.execute, self.numbers, _now()
        execute("BEGIN IMMEDIATE")
        last = self._next("entity_key", len(payloads))
        keys = range(last - len(payloads) + 1, last + 1)
        rows = zip(keys, payloads, strict=True)
        batch = orjson.dumps([(key, str(uuid7()), orjson.dumps(body).decode()) for key, body in rows]).decode()
        event = self._new_events(len(payloads))
        execute(SUBMIT_TASK, (batch, ns, queue, kind, policy, now, event))
        execute(SUBMIT_READY, (batch, queue, kind))
        self._write(self.numbers.submitted(), [(key, 1, 1, 0, now) for key in keys], event)
        execute("COMMIT")

    def claim(self, limit: int) -> Claimed:
        execute, queue, now = self._connection.execute, self.numbers.queue, _now()
        execute("BEGIN IMMEDIATE")
        tasks: Claimed = execute(PICK, {"queue": queue, "limit": limit, "now": now}).fetchall()
        if tasks:
            lease, event = self._next("lease_key", 1), self._new_events(len(tasks))
            keys = orjson.dumps([t[0] for t in tasks]).decode()
            execute(LEASE, (lease, self.numbers.ns, WORKER, now + LEASE_US, LEASE_US, keys))
            execute(TAKE, (queue, limit))
            execute(ASSIGN, (now, WORKER, lease, keys, event))
            self._must_have_changed(len(tasks))
            self._write(self.numbers.claimed(), [task[:5] for task in tasks], event)
        execute("COMMIT")
        return tasks

    def report(self, claimed: Claimed) -> None:
        execute, size = self._connection.execute, len(claimed)
        held, now = orjson.dumps([(task[0], task[2]) for task in claimed]).decode(), _now()
        execute("BEGIN IMMEDIATE")
        event = self._new_events(2 * size)
        execute(SUCCEED, (now, held, event, size))
        self._must_have_changed(size)
        moved = after_success(claimed, now)
        self._write(self.numbers.started(), before_success(moved), event)
        self._write(self.numbers.succeeded(), moved, event + size)
        execute("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _next(self, counter: str, count: int) -> int:
        value: Any = self._connection.execute(NEXT, (count, counter)).fetchall()[0][0]
        return int(value)

    def _new_events(self, count: int) -> int:
        """Ids of events that follow each other: the first."""
        return self._next("event_id", count) - count + 1

    def _write(self, happened: Happened, tasks: list[Moved], event: int) -> None:
        write_events(self._connection.execute, "sqlite", happened, tasks, event)

    def _must_have_changed(self, count: int) -> None:
        assert self._connection.changes() == count, "a guard of the limit did not hold"


def _now() -> int:
    return time.time_ns() // 1000
