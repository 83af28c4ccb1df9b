"""One new task on SQLite: its row, its place in the queue, its event, each by a plain INSERT.

Owns those statements. A batch is passed as JSON, which for a single row takes longer than writing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onetray.store.sqlite import SqliteStore

_TASK = """
INSERT INTO task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts, spared,
    created_at, updated_at, run_at, state, correlation_id, trace, payload)
VALUES (:key, :id, :key, :ns, :queue, :kind, :policy, 1, 1, :priority, 0, :max_attempts, 0, :now, :now, :now, :state,
    :correlation_id, :trace, :payload)"""
_READY = "INSERT INTO ready (queue, rank, task, kind) VALUES (:queue, -:priority, :key, :kind)"
_EVENT = """
INSERT INTO event (entity, job, ts, ns, version, fence, attempts, type, state, actor, correlation_id, cause, trace)
VALUES (:key, :key, :now, :ns, 1, 1, 0, :type, :state, :actor, :correlation_id, :cause, :trace)"""


def submit_one_sqlite(store: SqliteStore, task: dict[str, Any]) -> None:
    """Write a task that may run at once. It is there when this returns."""
    with store.transaction() as tx:
        (key,) = tx.new_keys(1)
        given = {**task, "key": key, "now": tx.now}
        for sql in (_TASK, _READY, _EVENT):
            tx.execute(sql, given)
        tx.rings = True
        tx.work.count(task["queue"], 1)
