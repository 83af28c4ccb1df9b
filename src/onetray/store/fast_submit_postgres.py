"""One new task on PostgreSQL as one statement: its row, its place in the queue, its event.

Owns that statement, and what became of it when its answer was lost. A transaction of several statements takes several
times as long, and most of that is spent between client and server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from onetray.domain.errors import Unavailable
from onetray.notify.new_work import NewWork, format_new_work
from onetray.notify.postgres import CHANNEL
from onetray.store.commit_check import CommitOutcome
from onetray.store.postgres_tx import CLOCK, is_refused

if TYPE_CHECKING:
    from psycopg import Connection

    from onetray.store.postgres import PostgresStore

# The task is inserted, and so the transaction has its number, before the first id of an event is drawn: the feed's
# barrier relies on it.
_SUBMIT = f"""
WITH new AS (
    INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts,
        spared, created_at, updated_at, run_at, state, correlation_id, trace, payload)
    SELECT k.key, %(id)s::uuid, k.key, %(ns)s, %(queue)s, %(kind)s, %(policy)s, 1, 1, %(priority)s, 0,
        %(max_attempts)s, 0, k.at, k.at, k.at, %(state)s, %(correlation_id)s, %(trace)s, %(payload)s
    FROM (SELECT nextval('onetray.entity_key') AS key, {CLOCK} AS at) AS k
    RETURNING key, created_at
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind) SELECT %(queue)s, -%(priority)s::integer, key, %(kind)s FROM new
)
INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, state, actor, correlation_id, cause,
    trace)
SELECT key, key, created_at, %(ns)s, 1, 1, 0, %(type)s, %(state)s, %(actor)s, %(correlation_id)s, %(cause)s, %(trace)s
FROM new
RETURNING entity, CASE WHEN %(tell)s THEN pg_notify('{CHANNEL}', %(news)s)::text END"""
_AT_WORK = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s)"
_THERE = "SELECT EXISTS (SELECT 1 FROM onetray.task WHERE id = %(id)s::uuid)"


def submit_one_postgres(store: PostgresStore, task: dict[str, Any]) -> None:
    """Write a task that may run at once. It is there when this returns."""
    work = NewWork({task["queue"]: 1})
    tell = store.quiet(work)
    news = format_new_work(work, store.sender)
    given = {**task, "tell": tell, "news": news, "now": store.clock.now() if store.clock else None}
    key = None
    with store.connection() as connection:
        pid, connection.warnings.seen = connection.info.backend_pid, False
        try:
            key = connection.execute(_SUBMIT, given).fetchall()[0][0]
            sure = not connection.warnings.seen
        except psycopg.Error as e:
            if is_refused(e):
                raise
            connection.close()
            sure = False
    if not sure and not store.resolve(lambda connection: _fate(connection, pid, task["id"])):
        raise Unavailable("the connection to PostgreSQL broke before the task was written")
    store.entered(task["queue"], -task["priority"], key or 0)
    store.announce(work, others_know=tell)


def _fate(connection: Connection[Any], pid: int, id_: str) -> CommitOutcome:
    """Whether the task is there, once whoever was writing it is gone."""
    at_work = connection.execute(_AT_WORK, {"pid": pid}).fetchall()[0][0]
    if connection.execute(_THERE, {"id": id_}).fetchall()[0][0]:
        return CommitOutcome.WRITTEN
    return CommitOutcome.UNDER_WAY if at_work else CommitOutcome.NOT_WRITTEN
