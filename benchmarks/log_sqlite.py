"""A drain's history on SQLite, by hand: sets of keys passed as one JSON value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import apsw
import orjson
from uuid_utils import uuid7

from benchmarks.limit import ACTOR, SUBMITTER, WORKER
from benchmarks.log_shapes import Encoding
from benchmarks.log_writes import KIND, LEASE, NS, POLICY, QUEUE, SCHEMA, Held, Log, Moved
from onetray.store.schema import migration
from onetray.store.sqlite import PRAGMAS

_TASKS = """
INSERT INTO task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, payload{column})
SELECT value ->> 0, value ->> 1, value ->> 0, :ns, :queue, :kind, :policy, 1, 1, 0, 0, 3, 0, :now, :now, :now, 'queued',
    value ->> 2{first}
FROM json_each(:batch)"""
_READY = (
    "INSERT INTO ready (queue, rank, task, kind) SELECT :queue, value ->> 3, value ->> 0, :kind FROM json_each(:batch)"
)
_SUBMIT_EVENTS = """
INSERT INTO event (entity, job, ts, ns, version, fence, attempts, type, state, actor)
SELECT value ->> 0, value ->> 0, :now, :ns, 1, 1, 0, 'task.submitted', 'queued', :actor FROM json_each(:batch)"""
_PICK = """
SELECT t.key, t.version + 1, t.fence, t.attempts + 1, max(:now, t.updated_at), {last}
FROM ready AS r JOIN task AS t ON t.key = r.task WHERE r.queue = :queue ORDER BY r.queue, r.rank, r.task LIMIT :limit"""
_TAKE = """
DELETE FROM ready WHERE (queue, rank, task) IN
    (SELECT queue, rank, task FROM ready WHERE queue = :queue ORDER BY queue, rank, task LIMIT :limit)"""
_ASSIGN = """
UPDATE task SET state = 'assigned', version = version + 1, updated_at = max(:now, updated_at), attempts = attempts + 1,
    owner = :worker, lease = :lease {claimed}
FROM json_each(:keys) AS b WHERE task.key = b.value AND state = 'queued'"""
_CLAIM_EVENTS = """
INSERT INTO event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor, correlation_id, trace)
SELECT t.key, t.job, t.updated_at, t.ns, t.version, t.fence, t.attempts, 'task.claimed', 'queued', 'assigned', :actor,
    t.correlation_id, t.trace
FROM json_each(:keys) AS b CROSS JOIN task AS t ON t.key = b.value"""
_LOOK = """
SELECT t.key, t.version + 2, t.fence, t.attempts, max(:now, t.updated_at), {last}
FROM json_each(:keys) AS b CROSS JOIN task AS t ON t.key = b.value ->> 0 ORDER BY b.key"""
_SUCCEED = """
UPDATE task SET state = 'succeeded', version = version + 2, updated_at = max(:now, updated_at),
    started_at = max(:now, updated_at), finished_at = max(:now, updated_at), owner = NULL, lease = NULL, result = NULL,
    error = NULL {reported}
FROM json_each(:keys) AS b WHERE task.key = b.value ->> 0 AND task.fence = b.value ->> 1 AND task.state = 'assigned'"""
_REPORT_EVENTS = """
INSERT INTO event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor, correlation_id, trace)
SELECT t.key, t.job, t.updated_at, t.ns, t.version + hop.column1, t.fence, t.attempts, hop.column2, hop.column3,
    hop.column4, :actor, t.correlation_id, t.trace
FROM json_each(:keys) AS b CROSS JOIN task AS t ON t.key = b.value ->> 0
    CROSS JOIN (VALUES (-1, 'task.started', 'assigned', 'running'),
        (0, 'task.succeeded', 'running', 'succeeded')) AS hop"""
_CHAIN = {
    "column": ", last_event",
    "first": ", :event + json_each.key",
    "last": "t.last_event",
    "claimed": ", last_event = :event + b.key",
    "reported": ", last_event = :event + :count + b.key",
}
_IDS = {
    "column": ", events",
    "first": ", :event + json_each.key",
    "last": "0",
    "claimed": ", events = events || ',' || (:event + b.key)",
    "reported": ", events = events || ',' || (:event + b.key) || ',' || (:event + :count + b.key)",
}
_NO_LINK = {"column": "", "first": "", "last": "0", "claimed": "", "reported": ""}
_SIZE = "SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_schema WHERE tbl_name = :table)"


@cache
def _here(sql: str) -> str:
    """Without the schema; a strict table knows one type of whole numbers."""
    here = sql.replace("onetray.", "")
    return here.replace("bigint", "integer") + (" STRICT" if here.startswith("\nCREATE TABLE") else "")


class SqliteLog(Log):
    store = "sqlite"

    def __init__(self, url: str, encoding: Encoding) -> None:
        self._connection = apsw.Connection(url.removeprefix("sqlite:///"))
        for pragma in PRAGMAS:
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(migration("sqlite", SCHEMA)).fetchall()
        words = _NO_LINK if encoding.shape is None else _IDS if encoding.ids else _CHAIN
        statements = (_TASKS, _PICK, _ASSIGN, _LOOK, _SUCCEED)
        self._tasks, self._pick, self._assign, self._look, self._succeed = (s.format(**words) for s in statements)
        super().__init__(encoding)

    def query(self, sql: str, **given: Any) -> list[Any]:
        values = {name: orjson.dumps(v).decode() if isinstance(v, list) else v for name, v in given.items()}
        return self._connection.execute(_here(sql), values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("COMMIT")

    def insert_tasks(self, first: int, ranks: Sequence[int], event: int, now: int) -> None:
        keys = range(first, first + len(ranks))
        tasks = [(key, str(uuid7()), f'{{"i":{key}}}', rank) for key, rank in zip(keys, ranks, strict=True)]
        numbers = {"ns": NS, "queue": QUEUE, "kind": KIND, "policy": POLICY}
        batch = orjson.dumps(tasks).decode()
        self.query(self._tasks, batch=batch, **numbers, now=now, event=event)
        self.query(_READY, batch=batch, queue=QUEUE, kind=KIND)
        if self.shape is None:
            self.query(_SUBMIT_EVENTS, batch=batch, ns=NS, now=now, actor=SUBMITTER)

    def assign(self, limit: int, event: int, now: int) -> list[Moved]:
        moved = sorted(self.query(self._pick, queue=QUEUE, limit=limit, now=now))
        keys = orjson.dumps([task[0] for task in moved]).decode()
        self.query(_TAKE, queue=QUEUE, limit=limit)
        self.query(self._assign, keys=keys, now=now, worker=WORKER, lease=LEASE, event=event)
        assert self._connection.changes() == len(moved), "a guard did not hold"
        if self.shape is None:
            self.query(_CLAIM_EVENTS, keys=keys, actor=ACTOR)
        return moved

    def succeed(self, held: Sequence[Held], event: int, now: int) -> list[Moved]:
        keys = orjson.dumps(list(map(tuple, held))).decode()
        # Rows of events are made of the tasks themselves.
        moved = [] if self.shape is None else self.query(self._look, keys=keys, now=now)
        self.query(self._succeed, keys=keys, now=now, event=event, count=len(held))
        assert self._connection.changes() == len(held), "a guard did not hold"
        if self.shape is None:
            self.query(_REPORT_EVENTS, keys=keys, actor=ACTOR)
        return moved

    def log_bytes(self) -> int:
        table = "event" if self.shape is None else "event_batch"
        return int(self.query(_SIZE, table=table)[0][0])

    def close(self) -> None:
        self._connection.close()
