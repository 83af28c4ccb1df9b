"""A crowd: very many tasks that cannot be claimed, written by the database itself in seconds.

A third is delayed, a third is held by a worker, a third has finished. Of each task only the first event is
written, so a crowd is for looking at plans and rates, not for the verifier.
"""

from __future__ import annotations

from onetray.lifecycle import ASSIGNED, QUEUED, SUCCEEDED, TASK
from onetray.store.base import Store, Tx
from onetray.store.postgres import PostgresTx
from onetray.store.sqlite import SqliteTx

FAR_US = 4_000_000_000_000_000
PER_LEASE = 1_000

_COUNT = {
    "sqlite": "(WITH RECURSIVE g(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM g WHERE n < {last}) "
    "SELECT n FROM g) AS g",
    "postgres": "generate_series({first}::bigint, {last}::bigint) AS g(n)",
}
_ID = {
    "sqlite": "printf('%08x-0000-7000-8000-%012x', n, n)",
    "postgres": "(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid",
}
_TASKS = f"""
INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts,
    spared, created_at, updated_at, run_at, started_at, finished_at, lease, owner, state, payload)
SELECT n, {{id}}, n, {{ns}}, {{queue}}, {{kind}}, {{policy}}, CASE n % 3 WHEN 0 THEN 1 WHEN 1 THEN 2 ELSE 4 END, 1, 0,
    CASE n % 3 WHEN 0 THEN 0 ELSE 1 END, 3, 0, {{now}}, {{now}}, CASE n % 3 WHEN 0 THEN {FAR_US} ELSE {{now}} END,
    CASE n % 3 WHEN 2 THEN {{now}} END, CASE n % 3 WHEN 2 THEN {{now}} END,
    CASE n % 3 WHEN 1 THEN n / {PER_LEASE} + 1 END, CASE n % 3 WHEN 1 THEN 'crowd' END,
    CASE n % 3 WHEN 0 THEN '{QUEUED}' WHEN 1 THEN '{ASSIGNED}' ELSE '{SUCCEEDED}' END, 'null'
FROM {{numbers}}"""
_DUE = f"INSERT INTO onetray.due (at, task, what, fence) SELECT {FAR_US}, n, 'run', 1 FROM {{numbers}} WHERE n % 3 = 0"
_LEASES = f"""
INSERT INTO onetray.lease (key, ns, worker, expires_at, length, tasks, part)
SELECT n, {{ns}}, 'crowd', {FAR_US}, 1, '[]', 0 FROM {{leases}}"""
_EVENTS = f"""
INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor)
SELECT n, n, {{now}}, {{ns}}, 1, 1, 0, '{TASK.submit.event}', '{QUEUED}', 'user:crowd' FROM {{numbers}}"""
_NEXT = {
    "sqlite": (
        "UPDATE counter SET value = value + {size} WHERE name = 'entity_key'",
        "UPDATE counter SET value = value + {leases_to} WHERE name = 'lease_key'",
    ),
    "postgres": (
        "SELECT setval('onetray.entity_key', {last})",
        "SELECT setval('onetray.lease_key', {leases_to})",
    ),
}


def fill(store: Store, size: int, *, queue: str = "default", kind: str = "noop", step: int = 100_000) -> None:
    """Add a crowd to an empty, migrated database, in the queue and of the kind that the claimable tasks will have."""
    names, dialect = store.names, store.dialect
    ns = names.intern_namespace("default")
    kind_key = names.intern_kind(ns, kind)
    words: dict[str, object] = {
        "ns": ns, "queue": names.intern_queue(ns, queue), "kind": kind_key, "now": store.now(), "size": size,
        "policy": names.policy_of_kind(kind_key, 60.0), "id": _ID[dialect], "last": size,
        "leases_to": size // PER_LEASE + 1,
    }  # fmt: skip
    words["leases"] = _COUNT[dialect].format(first=1, last=words["leases_to"])
    with store.transaction() as tx:
        for sql in (_LEASES, *_NEXT[dialect]):
            execute(tx, sql.format(**words))
    for first in range(1, size + 1, step):
        words["numbers"] = _COUNT[dialect].format(first=first, last=min(first + step - 1, size))
        with store.transaction() as tx:
            for sql in (_TASKS, _DUE, _EVENTS):
                execute(tx, sql.format(**words))


def execute(tx: Tx, sql: str) -> None:
    """Run a statement of the test's own inside a transaction of the store."""
    if isinstance(tx, SqliteTx):
        tx._connection.execute(sql.replace("onetray.", ""))
    else:
        assert isinstance(tx, PostgresTx)
        assert tx.now  # The transaction has begun.
        tx._connection.execute(sql.encode())
