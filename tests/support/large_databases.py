"""Databases with a crowd of tasks that cannot be claimed beside a few that can.

Filled by SQL that makes all rows at once: a million tasks through the engine would take minutes. Such a database
holds what plans are made from and no more; most tasks have no history, so it does not verify.
"""

from __future__ import annotations

import apsw
import psycopg

from onetray.domain.lifecycle import BLOCKED, CREATED, FLOW, QUEUED, STAGE, SUCCEEDED, TASK, WAITING, WAITING_INPUT
from onetray.engine import Engine
from onetray.engine.pending_writes import RUN
from onetray.store import open_store
from onetray.store.event_log import BLOCK
from onetray.store.sqlite import SqliteStore

FAR = 2**60
"""A time that does not come."""
CLAIMABLE = 1_000
LEASES = 50_000
FLOWS = 30_000
"""Flows of two stages with two tasks each, of which the second depends on the first."""
IN_FLOW = 7
"""The keys of such a flow: its own, then those of its stages, then those of its tasks."""
BIG = 10_000
"""The tasks of the one stage of a last, large flow."""

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
    "updated_at, run_at, state, finished_at, held_by, held_why, id, payload, events"
)
_EVENT = f"({{key}}) * {BLOCK}"
"""The id of the event of an entity: it has one, in a row of its own, so that the log is as long as it can be."""
_LISTED = f"CAST({_EVENT} AS text)"
_LOG = "id, size, entity, job, ts, ns, version, fence, attempts, type, state, actor"
_SAME = "t.ns, t.queue, t.kind, t.policy, 1, 1, {priority}, 0, t.max_attempts, 0, t.created_at, t.created_at"

_IDLE = f"""INSERT INTO onetray.task ({_COLUMNS}) SELECT t.key + n.i, t.key + n.i, {_SAME.format(priority=0)},
    CASE n.i % 3 WHEN 0 THEN {FAR} ELSE t.run_at END,
    CASE n.i % 3 WHEN 0 THEN '{QUEUED}' WHEN 1 THEN '{BLOCKED}' ELSE '{SUCCEEDED}' END,
    CASE n.i % 3 WHEN 2 THEN t.created_at END,
    CASE n.i % 3 WHEN 1 THEN 'user:ann' END, CASE n.i % 3 WHEN 1 THEN 'a question' END, {{id}}, t.payload,
    CASE WHEN n.i <= :events THEN {_LISTED.format(key="t.key + n.i")} ELSE '' END
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_DUE = f"""INSERT INTO onetray.due (at, task, what, fence)
SELECT {FAR}, :first + n.i, '{RUN}', 1 FROM {{series}} WHERE n.i % 3 = 0"""
_READY_TASKS = f"""INSERT INTO onetray.task ({_COLUMNS})
SELECT t.key + n.i, t.key + n.i, {_SAME.format(priority="n.i % 3")}, t.run_at, '{QUEUED}', NULL, NULL, NULL, {{id}},
    t.payload, {_LISTED.format(key="t.key + n.i")}
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_READY = """INSERT INTO onetray.ready (queue, rank, task, kind)
SELECT t.queue, -(n.i % 3), t.key + n.i, t.kind FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_EVENTS = f"""INSERT INTO onetray.event_batch ({_LOG})
SELECT {_EVENT.format(key="t.key + n.i")}, 1, t.key + n.i, NULL, t.created_at, t.ns, 1, 1, 0, '{TASK.submit.event}',
    '{QUEUED}', 'user:ann'
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_KEYS = f"""INSERT INTO onetray.idempotency (kind, key, job, body_hash, expires_at)
SELECT t.kind, 'key-' || n.i, t.key + n.i, '', {FAR}
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_UNIQUE = """INSERT INTO onetray.unique_key (kind, key, job)
SELECT t.kind, 'key-' || n.i, t.key + n.i FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_WINDOWS = """INSERT INTO onetray.submit_window (kind, mode, key, job, opened_at, until_at, replaced)
SELECT t.kind, 'throttle', 'key-' || n.i, t.key + n.i, 0, 0, 0
FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_LABELS = """INSERT INTO onetray.label (job, name, value, ns)
SELECT t.key + n.i, 'team', 'a', t.ns FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_ALIASES = """INSERT INTO onetray.alias (ns, alias, entity, key)
SELECT t.ns, 'key-' || n.i, 'task', t.key + n.i FROM onetray.task AS t CROSS JOIN {series} WHERE t.key = :first"""
_LOGS = """INSERT INTO onetray.log (task, cursor, ts, attempt, level, line)
SELECT :first + n.i, 1, 0, 1, 'info', 'a line' FROM {series}"""
_PROGRESS = """INSERT INTO onetray.progress (task, at, attempt, done) SELECT :first + n.i, 0, 1, 1 FROM {series}"""
_LEASES = f"""INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, part)
SELECT n.i, 1, 'w', CASE WHEN n.i % 50 = 0 THEN n.i ELSE {FAR} END, 60000000, '[]', 0 FROM {{series}}"""

_WAITING = f"""INSERT INTO onetray.waiting (key, ns, state, at)
SELECT :first + n.i, 1, '{WAITING_INPUT}', n.i FROM {{series}}"""
_WAITING_STAGES = f"""INSERT INTO onetray.waiting (key, ns, state, at)
SELECT s.key, s.ns, '{WAITING}', s.key FROM onetray.stage AS s WHERE s.ord = 1"""
_STATISTICS = f"""INSERT INTO onetray.statistic (ns, span, at, type, bucket, number)
SELECT 1, 60, CAST(n.i AS bigint) * 60000000, '{TASK.succeed.event}', 0, 1 FROM {{series}}"""

_FLOW_COLUMNS = (
    "key, job, ns, kind, version, sealed, created_at, updated_at, stages, stages_open, succeeded, partial, failed, "
    "cancelled, skipped, ignored, chained, amends, roll_up, data, state, finished_at, current, id, correlation_id, "
    "events"
)
_STAGE_COLUMNS = (
    "key, job, ns, ord, version, sealed, takes_more, gate, created_at, updated_at, total, open, blocked, "
    "waiting_input, succeeded, partly, failed, dead_lettered, cancelled, redriven, on_failure, collect, data, state, "
    "finished_at, name, id, correlation_id, events"
)
_KEY = f"(:flows + n.i * {IN_FLOW})"
_ENDED = "CASE n.i % 3 WHEN 2 THEN {ended} ELSE {open} END"
_FLOW_ROWS = f"""INSERT INTO onetray.flow ({_FLOW_COLUMNS})
SELECT {_KEY}, {_KEY}, t.ns, t.kind, 1, 1, t.created_at, t.created_at, 2, {_ENDED.format(ended=0, open=2)},
    {_ENDED.format(ended=2, open=0)}, 0, 0, 0, 0, 0, 1, 0, 'drain', '{{{{}}}}',
    {_ENDED.format(ended=f"'{SUCCEEDED}'", open=f"'{CREATED}'")}, {_ENDED.format(ended="t.created_at", open="NULL")},
    {_KEY} + 1, {{id}}, 'flow ' || {_KEY}, {_LISTED.format(key=_KEY)}
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_STAGE_ROWS = f"""INSERT INTO onetray.stage ({_STAGE_COLUMNS})
SELECT f.key + o.ord, f.key, f.ns, o.ord, 1, 1, 1, 0, f.created_at, f.created_at, 2, f.stages_open, 0, 0,
    f.succeeded, 0, 0, 0, 0, 0, 'stop', 'list', '{{{{}}}}', f.state, f.finished_at, 'stage ' || o.ord, {{id}},
    f.correlation_id, {_LISTED.format(key="f.key + o.ord")}
FROM onetray.flow AS f CROSS JOIN (SELECT 1 AS ord UNION ALL SELECT 2) AS o WHERE f.key < :big OR o.ord = 1"""
_MEMBERS = f"""INSERT INTO onetray.task ({_COLUMNS}, stage, name, unmet)
SELECT s.job + 1 + 2 * s.ord + m.i, s.job, t.ns, t.queue, t.kind, t.policy, 1, 1, 0, 0, t.max_attempts, 0, t.created_at,
    t.created_at, t.run_at, CASE WHEN s.finished_at IS NULL THEN '{QUEUED}' ELSE '{SUCCEEDED}' END, s.finished_at, NULL,
    NULL, {{id}}, t.payload, {_LISTED.format(key="s.job + 1 + 2 * s.ord + m.i")}, s.key, 'task ' || s.ord || m.i,
    CASE WHEN s.finished_at IS NULL THEN m.i ELSE 0 END
FROM onetray.stage AS s CROSS JOIN (SELECT 0 AS i UNION ALL SELECT 1) AS m JOIN onetray.task AS t ON t.key = :first
WHERE s.key < :big"""
_BIG_STAGE = f"""INSERT INTO onetray.task ({_COLUMNS}, stage)
SELECT :big + 1 + n.i, :big, {_SAME.format(priority=0)}, t.run_at, '{QUEUED}', NULL, NULL, NULL, {{id}}, t.payload,
    {_LISTED.format(key=":big + 1 + n.i")}, :big + 1
FROM onetray.task AS t CROSS JOIN {{series}} WHERE t.key = :first"""
_DEPENDENCIES = """INSERT INTO onetray.dependency (needs, task)
SELECT t.key - 1, t.key FROM onetray.task AS t WHERE t.stage IS NOT NULL AND t.name IN ('task 11', 'task 21')"""
_CONTEXTS = """INSERT INTO onetray.context (key, job, ns, created_at, scope, id, payload)
SELECT f.key, f.key, f.ns, f.created_at, 'run', f.id, '1' FROM onetray.flow AS f"""
_PARENT_EVENTS = f"""INSERT INTO onetray.event_batch ({_LOG})
SELECT {_EVENT.format(key="f.key")}, 1, f.key, NULL, f.created_at, f.ns, 1, 0, 0, '{FLOW.submit.event}', '{CREATED}',
    'user:ann'
FROM onetray.flow AS f
UNION ALL SELECT {_EVENT.format(key="s.key")}, 1, s.key, s.job, s.created_at, s.ns, 1, 0, 0, '{STAGE.add.event}',
    '{CREATED}', 'user:ann'
FROM onetray.stage AS s
UNION ALL SELECT {_EVENT.format(key="t.key")}, 1, t.key, t.job, t.created_at, t.ns, 1, 1, 0, '{TASK.submit.event}',
    '{QUEUED}', 'user:ann'
FROM onetray.task AS t WHERE t.stage IS NOT NULL"""
_FLOW_EVENTS = """INSERT INTO onetray.flow_event (job, batch)
SELECT b.job, b.id FROM onetray.event_batch AS b WHERE b.job IS NOT NULL
UNION ALL SELECT f.key, b.id FROM onetray.flow AS f JOIN onetray.event_batch AS b ON b.entity = f.key"""


def fill(url: str, idle: int, events: int = 0) -> int:
    """Make `idle` tasks that cannot be claimed, then CLAIMABLE that can. Returns the key before the claimable ones."""
    first = _first_task(url)
    last = idle + CLAIMABLE - 1
    parts = [(_READY_TASKS, idle + 1, last), (_READY, idle + 1, last), (_EVENTS, idle + 1, last)]
    parts += [(part, idle + 1, last) for part in (_KEYS, _UNIQUE, _WINDOWS, _LABELS, _ALIASES, _LOGS, _PROGRESS)]
    if idle:
        parts = [(_IDLE, 1, idle), (_DUE, 1, idle), (_EVENTS, 1, min(events, idle)), (_LEASES, 1, LEASES), *parts]
    flows = first + last
    big = flows + (FLOWS + 1) * IN_FLOW
    ids = {}
    if idle:
        ids = {_FLOW_ROWS: _KEY, _STAGE_ROWS: "(f.key + o.ord)", _MEMBERS: "(s.job + 1 + 2 * s.ord + m.i)"}
        ids |= {_BIG_STAGE: "(:big + 1 + n.i)"}
        parts += [(_FLOW_ROWS, 1, FLOWS + 1), (_STAGE_ROWS, 1, 1), (_MEMBERS, 1, 1), (_BIG_STAGE, 1, BIG)]
        parts += [(_DEPENDENCIES, 1, 1), (_CONTEXTS, 1, 1), (_PARENT_EVENTS, 1, 1), (_FLOW_EVENTS, 1, 1)]
        parts += [(_WAITING, 1, LEASES), (_WAITING_STAGES, 1, 1), (_STATISTICS, 1, LEASES)]
    dialect = "sqlite" if url.startswith("sqlite:") else "postgres"
    texts = [
        part.replace("{series}", _SERIES[dialect].format(first=a, last=b))
        .replace("{id}", _ID[dialect].format(i=f"({ids[part]} - {first})" if part in ids else "n.i"))
        .replace("{{}}", "{}")
        .replace(":first", str(first))
        .replace(":events", str(events))
        .replace(":flows", str(flows))
        .replace(":big", str(big))
        for part, a, b in parts
    ]
    (_run_sqlite if dialect == "sqlite" else _run_postgres)(url, texts, big + BIG + 1)
    return first + idle


def first_flow(before: int) -> int:
    """The key of the first flow in a crowd that was filled up to this key."""
    return before + CLAIMABLE - 1 + IN_FLOW


def _first_task(url: str) -> int:
    """A task from the engine: the others are like it."""
    store = open_store(url)
    store.migrate()
    with Engine(store) as engine:
        return engine.task(str(engine.submit("noop", {"i": 0}).id)).key


def event_of(key: int) -> int:
    """The id of the event of an entity in a crowd."""
    return key * BLOCK


def _counters(last: int) -> dict[str, int]:
    return {"entity_key": last, "lease_key": LEASES, "event_id": event_of(last)}


def _run_postgres(url: str, texts: list[str], last: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for table in (
            "task", "ready", "event_batch", "flow_event", "due", "lease", "idempotency", "log", "flow", "stage",
            "dependency", "context", "unique_key", "submit_window", "label", "alias", "waiting", "statistic",
        ):  # fmt: skip
            # Statistics come when the test wants them.
            connection.execute(f"ALTER TABLE onetray.{table} SET (autovacuum_enabled = false)".encode())
        for text in texts:
            connection.execute(text.encode())
        for counter, value in _counters(last).items():
            connection.execute("SELECT setval(%s, %s)", (f"onetray.{counter}", value))


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
    for counter, value in _counters(last).items():
        connection.execute("UPDATE counter SET value = ? WHERE name = ?", (value, counter))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
