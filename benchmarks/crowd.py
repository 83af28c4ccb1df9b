"""Databases with a crowd in them: one job is made by the engine, and all others are copies of its rows.

Owns the copying, which is set-based: millions of jobs through the engine would take hours. Each copy has every row
that its original has, so such a database verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import psycopg

from benchmarks.core import must_pass, open_engine
from benchmarks.events import Happened, write_events
from benchmarks.host import settle
from benchmarks.limit import WORKER
from onetray.domain.clock import Clock
from onetray.domain.commands import Submit
from onetray.engine import Engine
from onetray.store.event_log import BLOCK

KIND = "noop"
STEP = 250_000
"""Copies in one transaction: memory and the log stay small."""
FAR_S = 10 * 365 * 86_400
KEYS = {
    "task": ("key", "job"),
    "ready": ("task",),
    "due": ("task",),
    "dead_letter": ("task",),
    "label": ("job",),
    "waiting": ("key",),
}
"""The tables that have rows for each job beside the log, and the columns that name it. The first one finds them."""
MOVE = 1_000
"""Tasks that move together: no more than a row of the log has entries."""
Execute = Callable[..., list[Any]]
"""Runs a statement, with parameters by name if it has some."""

SERIES = {
    "postgres": "generate_series({first}, {last}) AS n(i)",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {last}) "
    "SELECT i FROM s) AS n",
}
_ID = {
    "postgres": "('00000000-0000-7000-8000-' || lpad((t.{key} + n.i)::text, 12, '0'))::uuid",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', t.{key} + n.i)",
}
_COLUMNS = {
    "postgres": "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'onetray' "
    "AND table_name = '{table}' ORDER BY ordinal_position",
    "sqlite": "SELECT name FROM pragma_table_info('{table}')",
}
_EVENTS = f"""
SELECT version, fence, attempts, ts, {", ".join(Happened._fields)} FROM onetray.event_batch
WHERE entity = {{key}} ORDER BY id"""
_NEXT_EVENT = f"SELECT max(id) + {BLOCK} FROM onetray.event_batch"
_LAST = {
    "postgres": "SELECT setval('onetray.{counter}', {last})",
    "sqlite": "UPDATE counter SET value = {last} WHERE name = '{counter}'",
}


def delayed(engine: Engine) -> None:
    """A job whose time has not come."""
    must_pass(engine, [Submit(kind=KIND, payload={"number": 0}, delay_s=FAR_S)])


def queued(engine: Engine) -> None:
    """A job that can be claimed."""
    must_pass(engine, [Submit(kind=KIND, payload={"number": 0})])


def finished(engine: Engine) -> None:
    """A job that has succeeded, with its whole history."""
    queued(engine)
    (job,) = engine.claim(worker=WORKER)
    engine.succeed(job)


def fill(
    store: str, url: str, original: Callable[[Engine], None], count: int, say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:  # fmt: skip
    """Put so many jobs into an empty database, all like the one that `original` makes, at the time of `clock`."""
    add(store, url, original, count, say, clock)
    settle(store, url)


def add(
    store: str, url: str, original: Callable[[Engine], None], count: int, say: Callable[[str], None],
    clock: Clock | None = None,
) -> None:  # fmt: skip
    """The same beside what is in the database already. `original` makes the newest task of all."""
    with open_engine(url, clock) as engine:
        if not count:
            return
        original(engine)
        key = int(engine.store.read_sql("SELECT max(key) FROM onetray.task")[0][0])
    with _connected(store, url) as execute:
        columns = {table: _columns(execute, store, table) for table in KEYS}
        events = execute(_EVENTS.format(key=key))
        event = execute(_NEXT_EVENT)[0][0]
        for first in range(1, count, STEP):
            last = min(first + STEP, count) - 1
            with _transaction(execute, store):
                for table in KEYS:
                    listed = _listed(event, len(events), first)
                    execute(_copies(store, table, columns[table], key, first, last, listed))
                event = _log(execute, store, events, event, key, first, last)
            say(f"{store}: {last + 1:,} of {count:,} jobs beside")
        execute(_LAST[store].format(counter="entity_key", last=key + count))
        execute(_LAST[store].format(counter="event_id", last=event))


def _log(execute: Execute, store: str, events: list[Any], event: int, key: int, first: int, last: int) -> int:
    """The events of the copies, as if many of them had always moved together. Each row has a block of ids, from `event`
    on; the block after them."""
    for start in range(first, last + 1, MOVE):
        keys = range(key + start, key + min(start + MOVE, last + 1))
        for version, fence, attempts, ts, *common in events:
            write_events(execute, store, Happened(*common), [(k, version, fence, attempts, ts) for k in keys], event)
            event += BLOCK
    return event


def _listed(event: int, each: int, first: int) -> str:
    """The ids that `_log` gives to the events of the copy n.i, as its row lists them."""
    move, place = f"(n.i - {first}) / {MOVE} * {each * BLOCK}", f"(n.i - {first}) % {MOVE}"
    return " || ',' || ".join(f"CAST({event + nth * BLOCK} + {move} + {place} AS text)" for nth in range(each))


def _columns(execute: Execute, store: str, table: str) -> list[str]:
    return [name for (name,) in execute(_COLUMNS[store].format(table=table))]


def _copies(store: str, table: str, columns: list[str], key: int, first: int, last: int, events: str) -> str:
    own = {
        "task": {"id": _ID[store].format(key="key"), "events": events},
        # By default the id of the task.
        "dead_letter": {"correlation_id": f"CAST({_ID[store].format(key='task')} AS text)"},
    }
    shifted = {column: f"t.{column} + n.i" for column in KEYS[table]} | own.get(table, {})
    values = ", ".join(shifted.get(column, f"t.{column}") for column in columns)
    return (
        f"INSERT INTO onetray.{table} ({', '.join(columns)}) SELECT {values} FROM onetray.{table} AS t "
        f"CROSS JOIN {SERIES[store].format(first=first, last=last)} WHERE t.{KEYS[table][0]} = {key} ORDER BY n.i"
    )


@contextmanager
def _connected(store: str, url: str) -> Iterator[Execute]:
    """A call that runs a statement on a database that nobody else uses; durable at the end."""
    if store == "postgres":
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("SET synchronous_commit = off")

            def on_postgres(sql: str, given: dict[str, Any] | None = None) -> list[Any]:
                cursor = server.execute(sql.encode(), given)
                return cursor.fetchall() if cursor.description else []

            yield on_postgres
        return
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
        file.execute("PRAGMA synchronous = OFF")
        yield lambda sql, given=None: file.execute(sql.replace("onetray.", ""), given).fetchall()
        file.execute("PRAGMA synchronous = FULL")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _transaction(execute: Execute, store: str) -> Iterator[None]:
    execute("BEGIN" if store == "postgres" else "BEGIN IMMEDIATE")
    yield
    execute("COMMIT")
