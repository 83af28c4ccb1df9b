"""Submit one task on PostgreSQL with one statement: its task row, its ready row, its event.

Owns that statement, and finds out whether it took effect if its answer was lost. A transaction of several statements
takes several times as long, mostly for round trips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from onetray.domain.errors import Unavailable
from onetray.notify.new_work import NewWork, format_new_work
from onetray.notify.postgres import CHANNEL
from onetray.store.base import Columns
from onetray.store.commit_check import CommitOutcome
from onetray.store.pg_pipeline import run_queries
from onetray.store.postgres_tx import is_refused
from onetray.store.sql_template import BATCH_COLUMN, POSTGRES, fill, render, with_parameters, words_of

if TYPE_CHECKING:
    from psycopg import Connection

    from onetray.store.postgres import PostgresStore

# The transaction id comes first: the feed's barrier relies on it.
_AT = """at AS (
    SELECT nextval('onetray.event_id') AS id
    FROM (SELECT pg_current_xact_id() AS xid OFFSET 0) AS x WHERE x.xid IS NOT NULL
)"""
_TASK = """
    INSERT INTO onetray.task ({task_columns}, events)
    SELECT {b.task_columns}, CAST(at.id AS text) FROM at, (
        SELECT n.key, n.key AS job, n.at AS created_at, n.at AS updated_at, n.at AS run_at
        FROM (SELECT nextval('onetray.entity_key') AS key, {clock} AS at) AS n
    ) AS b
    RETURNING key, created_at"""
_EVENT = """
INSERT INTO onetray.event_batch (id, size, entity, ts, ns, type, state, actor, version, fence, attempts, cause)
SELECT at.id, 1, b.key, b.created_at, b.ns, b.type, b.state, b.actor, b.version, b.fence, b.attempts, b.cause
FROM at, new AS b"""


def _single(text: str, *computed: str) -> str:
    """A part of the statement: every column is a parameter, except the computed ones."""
    columns = frozenset(BATCH_COLUMN.findall(fill(text, words_of(POSTGRES))))
    return with_parameters("submit_one", text, POSTGRES, columns.difference(computed))


SUBMIT_ONE = render(
    "submit_one",
    f"""WITH {_AT}, new AS ({_single(_TASK, "key", "job", "created_at", "updated_at", "run_at")}
), listed AS (
    INSERT INTO onetray.ready (queue, rank, task, kind) SELECT :queue, -:priority::integer, key, :kind FROM new
){_single(_EVENT, "key", "created_at")}
RETURNING entity, CASE WHEN :notify THEN pg_notify('{CHANNEL}', :news)::text END""",
    POSTGRES,
    (),
)
_BACKEND_RUNS = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s)"
_TASK_EXISTS = "SELECT EXISTS (SELECT 1 FROM onetray.task WHERE id = %(id)s::uuid)"


def submit_one_postgres(store: PostgresStore, task: Columns, event: Columns) -> None:
    work = NewWork({task["queue"]: 1})
    notify = store.notifies_at_once(work)
    clock = {"now": store.clock.now() if store.clock else None}
    params = {**event, **task, **clock, "notify": notify, "news": format_new_work(work, store.sender)}
    key = None
    with store.connection() as connection:
        pid, connection.warnings.seen = connection.info.backend_pid, False
        try:
            [[(key, _)]] = run_queries(connection, [(SUBMIT_ONE.sql, params)])
            is_certain = not connection.warnings.seen
        except psycopg.Error as e:
            if is_refused(e):
                raise
            connection.close()
            is_certain = False
    if not is_certain and not store.resolve(lambda connection: _outcome(connection, pid, task["id"])):
        raise Unavailable("the connection to PostgreSQL broke before the task was written")
    store.entered(task["queue"], -task["priority"], key or 0)
    store.run_commit_hooks(work, others_know=notify)


def _outcome(connection: Connection[Any], pid: int, id_: str) -> CommitOutcome:
    """Whether the task exists. If not, that is final only when the backend that was writing it is gone."""
    ((is_running,),) = connection.execute(_BACKEND_RUNS, {"pid": pid}).fetchall()
    ((exists,),) = connection.execute(_TASK_EXISTS, {"id": id_}).fetchall()
    if exists:
        return CommitOutcome.WRITTEN
    return CommitOutcome.UNDER_WAY if is_running else CommitOutcome.NOT_WRITTEN
