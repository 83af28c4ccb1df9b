"""Submit tasks on PostgreSQL with one statement: their task rows, their ready rows, their events.

Owns that statement, for one task and for several, and finds out whether it took effect if its answer was lost. A
transaction of several statements takes several times as long, mostly for round trips.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from onetray.domain.errors import Unavailable
from onetray.notify.new_work import NewWork, format_new_work
from onetray.notify.postgres import CHANNEL
from onetray.store.base import Columns
from onetray.store.commit_check import CommitOutcome
from onetray.store.event_log import encode_batch
from onetray.store.pg_pipeline import bind_postgres, is_refused, run_queries
from onetray.store.sql_template import (
    BATCH_COLUMN,
    POSTGRES,
    TYPE_OF,
    Statement,
    fill,
    render,
    with_parameters,
    words_of,
)

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

_NUMBERED = """at AS (
    SELECT nextval('onetray.event_id') AS id, {clock} AS now
    FROM (SELECT pg_current_xact_id() AS xid OFFSET 0) AS x WHERE x.xid IS NOT NULL
), b AS MATERIALIZED (
    SELECT n.*, n.key AS job, at.now AS created_at, at.now AS updated_at, at.now AS run_at
    FROM at, (SELECT nextval('onetray.entity_key') AS key, u.* FROM {rows}) AS n
), keys AS (
    SELECT count(*) AS size, min(b.key) AS first, min(b.key - b.place) = max(b.key - b.place) AS follow_each_other,
        string_agg(CAST(b.key AS text), ',' ORDER BY b.place) AS list
    FROM b
)"""
# The keys are not in `varied` if each is the one before it plus one: see encode_batch.
_EVENTS = """
    INSERT INTO onetray.event_batch (id, size, entity, ts, ns, type, state, actor, version, fence, attempts, cause,
        varied)
    SELECT at.id, k.size, CASE WHEN k.follow_each_other THEN k.first END, at.now, :event_ns::integer, :type::text,
        :state::text, :event_actor::text, :version::integer, :fence::integer, :attempts::integer, :event_cause::text,
        CASE WHEN k.follow_each_other THEN :varied::text
        ELSE '{"entity":[' || k.list || ']' || coalesce(',' || substr(:varied::text, 2), '}') END
    FROM at, keys AS k"""
_TASKS = """INSERT INTO onetray.task ({task_columns}, events)
    SELECT {b.task_columns}, CAST(at.id + b.place - 1 AS text) FROM at, b"""
_LISTED = """INSERT INTO onetray.ready (queue, rank, task, kind)
    SELECT b.queue, -b.priority, b.key, b.kind FROM b"""
_TEXTS = ("id", "payload")
_PLACES = ("ns", "queue", "kind", "policy", "max_attempts", "priority", "correlation_id", "trace")


def _several(*lists: str) -> Statement:
    """The statement for several tasks, with these columns as lists."""
    arrays = [f":{column}::{TYPE_OF.get(column, 'text')}[]" for column in lists]
    rows = f"unnest({', '.join(arrays)}) WITH ORDINALITY AS u({', '.join(lists)}, place)"
    computed = (*lists, "key", "job", "created_at", "updated_at", "run_at", "place")
    return render(
        "submit_several",
        f"""WITH {fill(_NUMBERED, {**words_of(POSTGRES), "rows": rows})}, new AS (
    {_single(_TASKS, *computed)}
), listed AS (
    {_single(_LISTED, *computed)}
), logged AS ({_EVENTS}
)
SELECT first, CASE WHEN :notify THEN pg_notify('{CHANNEL}', :news)::text END FROM keys""",
        POSTGRES,
        (),
    )


SUBMIT_ALIKE, SUBMIT_SEVERAL = _several(*_TEXTS), _several(*_TEXTS, *_PLACES)
_BACKEND_RUNS = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s)"
_TASK_EXISTS = "SELECT EXISTS (SELECT 1 FROM onetray.task WHERE id = %(id)s::uuid)"


def submit_one_postgres(store: PostgresStore, task: Columns, event: Columns) -> None:
    work = NewWork({task["queue"]: 1})
    with _committed(store, SUBMIT_ONE, {**event, **task}, work, task["id"]) as key:
        store.entered(task["queue"], -task["priority"], key)


def submit_several_postgres(store: PostgresStore, tasks: Columns) -> None:
    size, places = len(tasks["id"]), (tasks["queue"], tasks["priority"])
    work: NewWork[int] = NewWork()
    work.count(tasks["queue"], size)
    is_alike = not isinstance(tasks["queue"], list)
    statement = SUBMIT_ALIKE if is_alike else SUBMIT_SEVERAL
    params = {**bind_postgres(statement, tasks), **_log_of(tasks, size)}
    with _committed(store, statement, params, work, tasks["id"][0]) as first:
        for queue, priority in [places] if is_alike else set(zip(*places, strict=True)):
            store.entered(queue, -priority, first)


def _log_of(tasks: Columns, size: int) -> dict[str, Any]:
    """What the row of the log says about these tasks, whose keys are not known yet."""
    events = {**tasks, "payload": None, "trace": None, "entity": list(range(size)), "job": None, "ts": 0}
    row = encode_batch(events)
    return {"varied": row["varied"], **{f"event_{name}": row[name] for name in ("ns", "actor", "cause")}}


@contextmanager
def _committed(
    store: PostgresStore, statement: Statement, params: dict[str, Any], work: NewWork[int], id_: str
) -> Iterator[int]:
    """Run the statement. The block runs when it has taken effect, with the first key, or 0; then the commit's hooks."""
    notify = store.notifies_at_once(work)
    now, news = store.clock.now() if store.clock else None, format_new_work(work, store.sender)
    key = None
    with store.connection() as connection:
        pid, connection.warnings.seen = connection.info.backend_pid, False
        try:
            queries = [(statement.sql, {**params, "now": now, "notify": notify, "news": news})]
            [[(key, _)]] = run_queries(connection, queries)
            is_certain = not connection.warnings.seen
        except psycopg.Error as e:
            if is_refused(e):
                raise
            connection.close()
            is_certain = False
    if not is_certain and not store.resolve(lambda connection: _outcome(connection, pid, id_)):
        raise Unavailable("the connection to PostgreSQL broke before the task was written")
    yield key or 0
    store.run_commit_hooks(work, others_know=notify)


def _outcome(connection: Connection[Any], pid: int, id_: str) -> CommitOutcome:
    """Whether the task exists. If not, that is final only when the backend that was writing it is gone."""
    ((is_running,),) = connection.execute(_BACKEND_RUNS, {"pid": pid}).fetchall()
    ((exists,),) = connection.execute(_TASK_EXISTS, {"id": id_}).fetchall()
    if exists:
        return CommitOutcome.WRITTEN
    return CommitOutcome.UNDER_WAY if is_running else CommitOutcome.NOT_WRITTEN
