"""What a statement costs: its plan, the rows and pages that it reads, the steps that it takes.

Each is run the way the engine runs it, in a transaction that is rolled back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import apsw
from psycopg import sql

from onetray.store.pg_pipeline import bind_postgres as bound_postgres
from onetray.store.postgres import PostgresStore
from onetray.store.sql_template import Statement
from onetray.store.sqlite import SqliteStore
from onetray.store.sqlite_tx import bind_sqlite as bound_sqlite
from onetray.store.sqlite_tx import with_batch

_PLACE = re.compile(r"%\((\w+)\)s")
_numbers = itertools.count()


@dataclass(slots=True)
class Cost:
    """What PostgreSQL says of a statement that it ran."""

    rows: int = 0
    """Rows that were read from tables, also those that a filter dropped."""
    buffers: int = 0
    nodes: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    """Tables that were read from end to end."""
    through: set[str] = field(default_factory=set)
    """Indexes that were used."""


class _Enough(Exception):
    """Ends a transaction so that it is rolled back."""


def on_postgres(
    store: PostgresStore,
    statement: Statement,
    params: Mapping[str, Any],
    *,
    generic: bool = False,
    plain: bool = False,
    warm: bool = True,
) -> Cost:
    """Run a statement and say what it cost; `plain` for those that the engine runs outside of any transaction.

    A prepared statement is planned anew for its parameters a few times, then perhaps once for any: `generic`.
    """
    given = bound_postgres(statement, {"now": None, **params})
    name = f"plan_{next(_numbers)}"
    places: dict[str, str] = {}
    for column in _PLACE.findall(statement.sql):
        places.setdefault(column, f"${len(places) + 1}")
    text = _PLACE.sub(lambda m: places[m.group(1)], statement.sql).replace("%%", "%")
    types = ", ".join(_type(given[p]) for p in places)
    values = ", ".join(sql.Literal(_text(given[p])).as_string(None) for p in places)
    mode = f"SET LOCAL plan_cache_mode = force_{'generic' if generic else 'custom'}_plan"
    run = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {name}{f' ({values})' if values else ''}"
    # Twice: the first time may also read what PostgreSQL keeps about a table, and set hint bits.
    for _ in range(2 if warm else 1):
        with _postgres_transaction(store, plain) as execute:
            execute(mode)
            execute(f"PREPARE {name}{f' ({types})' if types else ''} AS {text}")
            plan = execute(run).fetchall()[0][0][0]["Plan"]
            execute(f"DEALLOCATE {name}")
    return _cost(plan)


@contextmanager
def _postgres_transaction(store: PostgresStore, plain: bool) -> Iterator[Any]:
    if plain:
        with store.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield lambda text: connection.execute(text.encode(), prepare=False)
            finally:
                connection.rollback()
        return
    with suppress(_Enough), store.transaction() as tx:
        assert tx.now
        yield lambda text: tx._connection.execute(text.encode(), prepare=False)
        raise _Enough


def _type(value: Any) -> str:
    """As psycopg passes it: the smallest that holds a number, and what the statement makes of it for the rest."""
    if not isinstance(value, int):
        return "unknown"
    return "smallint" if abs(value) < 2**15 else "integer" if abs(value) < 2**31 else "bigint"


def _text(value: Any) -> Any:
    return "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else value


def _cost(plan: dict[str, Any]) -> Cost:
    cost = Cost(buffers=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    for node in _nodes(plan):
        cost.nodes.add(node["Node Type"])
        if node["Node Type"] == "Seq Scan":
            cost.whole.add(node["Relation Name"])
        if "Index Name" in node:
            cost.through.add(node["Index Name"])
        if "Scan" in node["Node Type"] and ("Relation Name" in node or "Index Name" in node):
            dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            cost.rows += round((node["Actual Rows"] + dropped) * node["Actual Loops"])
    return cost


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


@dataclass(slots=True)
class Steps:
    """What SQLite says of a statement that it ran."""

    details: list[str] = field(default_factory=list)
    steps: int = 0
    full_scan_steps: int = 0
    sorts: int = 0

    def whole(self) -> set[str]:
        """Tables that are read from end to end. What the statement itself makes, and lists in JSON, do not count."""
        made = {d.split()[1] for d in self.details if d.startswith(("CO-ROUTINE", "MATERIALIZE"))}
        made |= {"CONSTANT", "hops", "moved", "b"}
        scans = [d for d in self.details if d.startswith("SCAN") and "VIRTUAL TABLE" not in d]
        return {d.split()[1] for d in scans} - made


def on_sqlite(store: SqliteStore, statement: Statement, params: Mapping[str, Any]) -> Steps:
    given: Any = {"now": 0, **params}
    row = with_batch(statement, given) if ":batch" in statement.sql else bound_sqlite(statement, given)
    assert store.path is not None
    connection = apsw.Connection(store.path)
    found = Steps()

    def count(event: dict[str, Any]) -> None:
        status = event["stmt_status"]
        found.steps += status["SQLITE_STMTSTATUS_VM_STEP"]
        found.full_scan_steps += status["SQLITE_STMTSTATUS_FULLSCAN_STEP"]
        found.sorts += status["SQLITE_STMTSTATUS_SORT"]

    try:
        connection.execute("BEGIN IMMEDIATE")
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", row).fetchall()
        found.details += [str(r[3]) for r in plan]
        # Both: the counters start again when a statement starts.
        connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, _profiles(count))
        connection.execute(statement.sql, row).fetchall()
        connection.trace_v2(0, None)
    finally:
        connection.execute("ROLLBACK")
        connection.close()
    return found


def _profiles(count: Any) -> Any:
    return lambda event: count(event) if event["code"] == apsw.SQLITE_TRACE_PROFILE else None
