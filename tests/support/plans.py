"""Ask a database how it would run a statement, or how it did.

Owns the reading of both databases' plans. Statements are planned as the engine has them planned: those of a
transaction inside of one, reads outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw
from psycopg import Connection, Cursor

from onetray.store.base import Columns, Store
from onetray.store.postgres import PostgresStore, bound
from onetray.store.sqlite import SqliteStore, SqliteTx, with_batch
from onetray.store.sqlite import bound as bound_lite
from onetray.store.sqltext import Statement

BIG = ("task", "event", "ready")
_WHOLE = re.compile(r"^SCAN (task|event|ready|due|lease|t|r)\b")


class RolledBack(Exception):
    """Raised to undo what a statement did while it was looked at."""


def whole_tables(store: Store, statement: Statement, params: Columns, *, read: bool = False) -> list[str]:
    """What a statement would read from one end to the other: steps of its plan that should not be there."""
    if isinstance(store, SqliteStore):
        return [step for step in _steps(store, statement, params) if _WHOLE.match(step)]
    assert isinstance(store, PostgresStore)
    with _planning(store, read) as connection:
        plans = [_explained(connection, statement, params), _generic(connection, statement)]
    return [n["Relation Name"] for plan in plans for n in nodes(plan) if _reads_all(n)]


def _reads_all(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") in BIG and node["Node Type"] == "Seq Scan"


def _steps(store: SqliteStore, statement: Statement, params: Columns) -> list[str]:
    given: Any = dict(params)
    if statement.by_row:
        given = tuple(None for _ in statement.columns)
    elif statement.columns:
        given = with_batch(statement, given)
    else:
        given = bound_lite(statement, given)
    with store._reader() as connection:
        plan: Any = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", given).fetchall()
    return [step for *_, step in plan]


def sorts(store: Store, statement: Statement, params: Columns) -> list[str]:
    """The steps of a plan that put rows in order instead of reading them in order."""
    if isinstance(store, SqliteStore):
        return [step for step in _steps(store, statement, params) if "TEMP B-TREE" in step]
    assert isinstance(store, PostgresStore)
    with _planning(store) as connection:
        plan = _explained(connection, statement, params)
    return [n["Node Type"] for n in nodes(plan) if "Sort" in n["Node Type"]]


def analysed(store: PostgresStore, statement: Statement, params: Columns) -> dict[str, Any]:
    """The plan with what it really took; what the statement did is undone."""
    with _planning(store) as connection:
        return _explained(connection, statement, params, "ANALYZE, BUFFERS, ")


@contextmanager
def _planning(store: PostgresStore, read: bool = False) -> Iterator[Connection[Any]]:
    """A connection in the state in which the engine's statements are planned. What they did is undone."""
    if read:
        with store._connection() as connection:
            yield connection
        return
    with suppress(RolledBack), store.transaction() as tx:
        assert tx.now  # The transaction has begun.
        yield tx._connection
        raise RolledBack


def _explained(connection: Connection[Any], statement: Statement, params: Columns, options: str = "") -> dict[str, Any]:
    given = {"now": None, **bound(statement, params)}
    return _plan(connection.execute(f"EXPLAIN ({options}FORMAT JSON) {statement.sql}".encode(), given))


def _generic(connection: Connection[Any], statement: Statement) -> dict[str, Any]:
    """The plan for any parameters: the one that a prepared statement may get after a while."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.sql)))
    sql = re.sub(r"%\((\w+)\)s", lambda m: f"${names.index(m.group(1)) + 1}", statement.sql)
    connection.execute(f"PREPARE looked_at AS {sql}".encode())
    connection.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', false)")
    try:
        return _plan(connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE looked_at({', '.join(['NULL'] * len(names))})"))
    finally:
        connection.execute("SELECT set_config('plan_cache_mode', 'auto', false)")
        connection.execute("DEALLOCATE looked_at")


def _plan(answer: Cursor[Any]) -> dict[str, Any]:
    (((whole,),),) = answer.fetchall()
    plan: dict[str, Any] = whole["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def buffers(plan: dict[str, Any]) -> int:
    """How many pages were looked at."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def rows_read(plan: dict[str, Any], table: str) -> int:
    """How many rows of a table the plan went through, those included that it then dropped."""
    return int(
        sum(
            (n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"]
            for n in nodes(plan)
            if n.get("Relation Name") == table and "Scan" in n["Node Type"]
        )
    )


def steps_taken(store: SqliteStore, statement: Statement, params: Columns) -> int:
    """How many hundreds of steps SQLite's machine makes for a statement."""
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return False

    with store.transaction() as tx:
        assert isinstance(tx, SqliteTx)
        connection: apsw.Connection = tx._connection
        connection.set_progress_handler(tick, 100)
        try:
            connection.execute(statement.sql, {"now": tx.now, **params}).fetchall()
        finally:
            connection.set_progress_handler(None)
    return count
