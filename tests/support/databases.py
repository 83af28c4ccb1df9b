"""Migrated PostgreSQL databases that are emptied and used again.

Making and dropping a database takes a quarter of a second; emptying a small one takes milliseconds. A database
whose schema a test has changed is thrown away.

Each database has one connection that stays open between tests, the keeper: it verifies the database and empties it.
A new connection would spend more on planning the statements for that than the test spends on its own. Those of the
engines are kept for the same reason: see warm_pool.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import psycopg

from onetray.store import open_store
from onetray.store.postgres import PostgresSnapshot
from onetray.store.sql_template import POSTGRES
from onetray.verify import Findings, look
from onetray.verify.checks import COUNTS, EVENTS, passes
from onetray.verify.folded import broken_folds
from tests.support.cluster import Server
from tests.support.waits import wait_until
from tests.support.warm_pool import drop_connections, keep_connections, kept_pids

KEEPER = "onetray-tests-keeper"
PATIENCE_S = 60.0
FEW_EVENTS = 2_000
"""Up to so many, a plan that was made for an empty table will do."""

_OWN = "oid >= 16384"
"""What initdb has not made. It is found by an index: a look at all functions takes longer than all the rest of this."""
# What a test could have added, dropped or altered in the schema, as sums: lists would take longer than the test.
_SHAPE = f"""
(SELECT (count(*), sum(oid::int8), sum(hashtext(reloptions::text)))::text FROM pg_class
    WHERE {_OWN} AND relnamespace = to_regnamespace('onetray')),
(SELECT (count(*), sum(oid::int8))::text FROM pg_constraint WHERE {_OWN} AND connamespace = to_regnamespace('onetray')),
(SELECT (count(*), sum(oid::int8))::text FROM pg_trigger),
(SELECT (count(*), sum(oid::int8))::text FROM pg_proc
    WHERE {_OWN} AND pronamespace IN (to_regnamespace('onetray'), to_regnamespace('public'))),
(SELECT (count(*), sum(hashtext(attname::text)::int8 * attnum))::text FROM pg_attribute
    WHERE attrelid IN (SELECT oid FROM pg_class WHERE {_OWN} AND relnamespace = to_regnamespace('onetray')))
"""
_HAS_FEW_EVENTS = f"SELECT count(*) <= {FEW_EVENTS} FROM (SELECT 1 FROM onetray.event LIMIT {FEW_EVENTS + 1}) AS e"
# pg_terminate_backend can wait for their end, too, but looks only every 100 ms.
_END_OTHERS = f"""
SELECT (SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL(%s::int[])
        AND backend_type = 'client backend'), {_SHAPE}
"""
# Tables that are referred to come last.
_TABLES = """
SELECT format('onetray.%I', tablename) FROM pg_tables
WHERE schemaname = 'onetray' AND tablename NOT IN ('migration', 'statistic_cursor')
ORDER BY array_position(ARRAY['policy', 'namespace'], tablename::text) NULLS FIRST, tablename = 'kind' DESC
"""
_SEQUENCES = "SELECT format('onetray.%I', sequencename) FROM pg_sequences WHERE schemaname = 'onetray'"
# One call instead of a statement for each table. The plans of a function are kept with the connection.
_TO_EMPTY = """
CREATE FUNCTION pg_temp.empty() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    {deletes}
    UPDATE onetray.statistic_cursor SET since = 0, upto = 0, counted_at = 0, removed_at = 0;
    {resets}
END $$
"""
_EMPTY = "SELECT pg_temp.empty()"


@cache
def _broken_passes() -> str:
    """SQL for the names of all passes of the verifier that find something: the events are decoded once."""
    each = (
        f"SELECT '{p.name}' FROM ({p.first_broken().removeprefix(p.events)}) AS {p.name}_broken"
        for p in passes(POSTGRES)
        if p.name != COUNTS
    )
    return f"WITH event_rows AS MATERIALIZED ({EVENTS}) {' UNION ALL '.join(each)}"


class Keeper:
    """The connection to one database that outlives the tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        keep_connections(url)
        self._open()
        self._shape = self._end_others()[1:]

    def _open(self) -> None:
        self._connection = psycopg.connect(self.url, autocommit=True, prepare_threshold=0, application_name=KEEPER)
        deletes = [f"DELETE FROM {name};" for (name,) in self._connection.execute(_TABLES)]
        resets = [f"PERFORM setval('{name}', 1, false);" for (name,) in self._connection.execute(_SEQUENCES)]
        to_empty = _TO_EMPTY.format(deletes="\n    ".join(deletes), resets="\n    ".join(resets))
        self._connection.execute(to_empty.encode(), prepare=False)

    def verify(self) -> Findings | None:
        """What the verifier finds, or None where a plan made for small tables would take too long."""
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if connection.execute(_HAS_FEW_EVENTS).fetchall() != [(True,)]:
                return None
            snapshot = PostgresSnapshot(connection)
            if connection.execute(_broken_passes().encode()).fetchall() or broken_folds(snapshot, POSTGRES):
                return look(snapshot, POSTGRES)
            return Findings()
        finally:
            # After a rollback psycopg would forget what it has prepared.
            connection.execute("COMMIT")

    def empty(self) -> bool:
        """Take every row out and start the sequences again; False when the schema is not what it was."""
        try:
            return self._empty()
        except psycopg.OperationalError:  # A test has ended every connection to its database.
            self._connection.close()
            self._open()
            return self._empty()

    def _empty(self) -> bool:
        shapes = list[object]()

        def is_alone() -> bool:
            ended, *shape = self._end_others()
            shapes.append(shape)
            return ended == 0

        wait_until(is_alone, PATIENCE_S)
        if shapes[-1] != self._shape:
            return False
        self._connection.execute(_EMPTY)
        return True

    def _end_others(self) -> list[object]:
        """End the connections that the engines have not left. Answers how many there were, and the schema's shape."""
        ((*row,),) = self._connection.execute(_END_OTHERS.encode(), (kept_pids(self.url),))
        return row

    def close(self) -> None:
        drop_connections(self.url)
        self._connection.close()


_keepers: dict[str, Keeper] = {}


def is_lent(url: str) -> bool:
    return url in _keepers


def verified_by_keeper(url: str) -> Findings | None:
    """What the verifier finds in a database that is lent to a test, or None: ask it in the usual way."""
    if (keeper := _keepers.get(url)) is None:
        return None
    with suppress(psycopg.OperationalError):
        return keeper.verify()
    return None


class Databases:
    """Databases on one server, each lent to one test at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._free: list[Keeper] = []
        self._made: list[Keeper] = []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a migrated database without a row in it."""
        keeper = self._free.pop() if self._free else self._new()
        _keepers[keeper.url] = keeper
        try:
            yield keeper.url
        finally:
            if keeper.empty():
                self._free.append(keeper)
            else:
                self._drop(keeper)

    def _new(self) -> Keeper:
        url = self._server.create_database()
        store = open_store(url)
        store.migrate()
        store.close()
        keeper = Keeper(url)
        self._made.append(keeper)
        return keeper

    def _drop(self, keeper: Keeper) -> None:
        keeper.close()
        _keepers.pop(keeper.url, None)
        self._made.remove(keeper)
        self._server.drop_database(keeper.url)

    def close(self) -> None:
        for keeper in [*self._made]:
            self._drop(keeper)
