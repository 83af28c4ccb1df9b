"""Databases with a crowd of tasks that cannot be claimed beside a few that can.

Filled by SQL that makes all rows at once: a million tasks through the engine would take minutes. Such a database
holds what plans are made from and no more; most tasks have no history, so it does not verify.
"""

from __future__ import annotations

import apsw
import psycopg

from onetray.engine import Engine
from onetray.engine.moves import RUN
from onetray.lifecycle import BLOCKED, QUEUED, SUCCEEDED, TASK
from onetray.store import open_store
from onetray.store.sqlite import SqliteStore

FAR = 2**60
"""A time that does not come."""
CLAIMABLE = 1_000
LEASES = 50_000

_SERIES = {
    "postgres": "(SELECT generate_series({first}, {last}) AS i) AS n",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {last}) "
    "SELECT i FROM s WHERE i <= {last}) AS n",
}
_ID = {
    "postgres": "('00000000-0000-7000-8000-' || lpad({i}::text, 12, '0'))::uuid",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', {i})",
}
_COLUMNS = (
    "key, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared, created_at, "
    "updated_at, run_at, state, finished_at, held_by, held_why, id, payload"
)
_SAME = "t.ns, t.queue, t.kind, t.policy, 1, 1, {priority}, 0, t.max_attempts, 0, t.created_at, t.created_at"

_IDLE = f"""INSERT INTO onetray.task ({_COLUMNS}) SELECT t.key + n.i, t.key + n.i, {_SAME.format(priority=0)},
    CASE n.i % 3 WHEN 0 THEN {FAR} ELSE t.run_at END,
    CASE n.i % 3 WHEN 0 THEN '{QUEUED}' WHEN 1 THEN '{BLOCKED}' ELSE '{SUCCEEDED}' END,
    CASE n.i % 3 WHEN 2 THEN t.created_at END,
    CASE n.i % 3 WHEN 1 THEN 'user:ann' END, CASE n.i % 3 WHEN 1 THEN 'a question' END, {{id}}, t.payload
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_DUE = f"""INSERT INTO onetray.due (at, task, what, fence)
SELECT {FAR}, :first + n.i, '{RUN}', 1 FROM {{series}} WHERE n.i % 3 = 0"""
_READY_TASKS = f"""INSERT INTO onetray.task ({_COLUMNS})
SELECT t.key + n.i, t.key + n.i, {_SAME.format(priority="n.i % 3")}, t.run_at, '{QUEUED}', NULL, NULL, NULL, {{id}},
    t.payload
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_READY = """INSERT INTO onetray.ready (queue, rank, task, kind)
SELECT t.queue, -(n.i % 3), t.key + n.i, t.kind FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_EVENTS = f"""INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor)
SELECT t.key + n.i, t.key + n.i, t.created_at, t.ns, 1, 1, 0, '{TASK.submit.event}', '{QUEUED}', 'user:ann'
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_KEYS = f"""INSERT INTO onetray.idempotency (kind, key, job, body_hash, expires_at)
SELECT t.kind, 'key-' || n.i, t.key + n.i, '', {FAR}
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_LOGS = """INSERT INTO onetray.log (task, cursor, ts, attempt, level, line)
SELECT :first + n.i, 1, 0, 1, 'info', 'a line' FROM {series}"""
_LEASES = f"""INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, part)
SELECT n.i, 1, 'w', CASE WHEN n.i % 50 = 0 THEN n.i ELSE {FAR} END, 60000000, '[]', 0 FROM {{series}}"""


def fill(url: str, idle: int, events: int = 0) -> int:
    """Make `idle` tasks that cannot be claimed, then CLAIMABLE that can. Returns the key before the claimable ones."""
    first = _first_task(url)
    last = idle + CLAIMABLE - 1
    parts = [(_READY_TASKS, idle + 1, last), (_READY, idle + 1, last), (_EVENTS, idle + 1, last)]
    parts += [(_KEYS, idle + 1, last), (_LOGS, idle + 1, last)]
    if idle:
        parts = [(_IDLE, 1, idle), (_DUE, 1, idle), (_EVENTS, 1, min(events, idle)), (_LEASES, 1, LEASES), *parts]
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    texts = [
        part.replace("{series}", _SERIES[dialect].format(first=a, last=b))
        .replace("{id}", _ID[dialect].format(i="n.i"))
        .replace(":first", str(first))
        for part, a, b in parts
    ]
    (_run_sqlite if dialect == "sqlite" else _run_postgres)(url, texts, first + last)
    return first + idle


def _first_task(url: str) -> int:
    """A task from the engine: the others are like it."""
    store = open_store(url)
    store.migrate()
    with Engine(store) as engine:
        return engine.task(str(engine.submit("noop", {"i": 0}).id)).key


def _run_postgres(url: str, texts: list[str], last: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for table in ("task", "ready", "event", "due", "lease", "idempotency", "log"):
            # Statistics come when the test wants them.
            connection.execute(f"ALTER TABLE onetray.{table} SET (autovacuum_enabled = false)".encode())
        for text in texts:
            connection.execute(text.encode())
        connection.execute("SELECT setval('onetray.entity_key', %s), setval('onetray.lease_key', %s)", (last, LEASES))


def _run_sqlite(url: str, texts: list[str], last: int) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.path is not None
    store.close()
    connection = apsw.Connection(store.path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for text in texts:
        connection.execute(text.replace("onetray.", ""))
    connection.execute("UPDATE counter SET value = ? WHERE name = 'entity_key'", (last,))
    connection.execute("UPDATE counter SET value = ? WHERE name = 'lease_key'", (LEASES,))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
