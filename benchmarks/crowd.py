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
from benchmarks.host import settle
from benchmarks.limit import WORKER
from onetray.domain.clock import Clock
from onetray.domain.commands import Submit
from onetray.engine import Engine

KIND = "noop"
STEP = 250_000
"""Copies in one transaction: memory and the log stay small."""
FAR_S = 10 * 365 * 86_400
KEYS = {"task": ("key", "job"), "ready": ("task",), "due": ("task",), "event": ("entity", "job")}
"""The tables that have rows for each job, and the columns that name it. The first one finds them."""
Execute = Callable[[str], list[Any]]

_SERIES = {
    "postgres": "generate_series({first}, {last}) AS n(i)",
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {last}) "
    "SELECT i FROM s) AS n",
}
_ID = {
    "postgres": "('00000000-0000-7000-8000-' || lpad((t.key + n.i)::text, 12, '0'))::uuid",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', t.key + n.i)",
}
_COLUMNS = {
    "postgres": "SELECT column_name::text FROM information_schema.columns WHERE table_schema = 'onetray' "
    "AND table_name = '{table}' ORDER BY ordinal_position",
    "sqlite": "SELECT name FROM pragma_table_info('{table}')",
}
_LAST_KEY = {
    "postgres": "SELECT setval('onetray.entity_key', {last})",
    "sqlite": "UPDATE counter SET value = {last} WHERE name = 'entity_key'",
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
    with open_engine(url, clock) as engine:
        if not count:
            return
        original(engine)
        key = int(engine.store.read_sql("SELECT max(key) FROM onetray.task")[0][0])
    with _connected(store, url) as execute:
        columns = {table: _columns(execute, store, table) for table in KEYS}
        for first in range(1, count, STEP):
            last = min(first + STEP, count) - 1
            with _transaction(execute, store):
                for table in KEYS:
                    execute(_copies(store, table, columns[table], key, first, last))
            say(f"{store}: {last + 1:,} of {count:,} jobs beside")
        execute(_LAST_KEY[store].format(last=key + count))
    settle(store, url)


def _columns(execute: Execute, store: str, table: str) -> list[str]:
    # An event's own number is given to it as it is written.
    return [name for (name,) in execute(_COLUMNS[store].format(table=table)) if (table, name) != ("event", "id")]


def _copies(store: str, table: str, columns: list[str], key: int, first: int, last: int) -> str:
    shifted = {column: f"t.{column} + n.i" for column in KEYS[table]} | ({"id": _ID[store]} if table == "task" else {})
    values = ", ".join(shifted.get(column, f"t.{column}") for column in columns)
    # In the order in which they would have been written.
    order = "n.i, t.id" if table == "event" else "n.i"
    return (
        f"INSERT INTO onetray.{table} ({', '.join(columns)}) SELECT {values} FROM onetray.{table} AS t "
        f"CROSS JOIN {_SERIES[store].format(first=first, last=last)} WHERE t.{KEYS[table][0]} = {key} ORDER BY {order}"
    )


@contextmanager
def _connected(store: str, url: str) -> Iterator[Execute]:
    """A call that runs a statement on a database that nobody else uses; durable at the end."""
    if store == "postgres":
        with psycopg.connect(url, autocommit=True) as server:
            server.execute("SET synchronous_commit = off")

            def on_postgres(sql: str) -> list[Any]:
                cursor = server.execute(sql.encode())
                return cursor.fetchall() if cursor.description else []

            yield on_postgres
        return
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as file:
        file.execute("PRAGMA synchronous = OFF")
        yield lambda sql: file.execute(sql.replace("onetray.", "")).fetchall()
        file.execute("PRAGMA synchronous = FULL")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _transaction(execute: Execute, store: str) -> Iterator[None]:
    execute("BEGIN" if store == "postgres" else "BEGIN IMMEDIATE")
    yield
    execute("COMMIT")
