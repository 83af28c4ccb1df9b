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
from typing import Any

import psycopg

from onetray.store import open_store
from onetray.store.postgres import PostgresSnapshot
from onetray.verify import Findings, look
from tests.support.cluster import Server
from tests.support.warm_pool import drop_connections, keep_connections, kept_pids

KEEPER = "onetray-tests-keeper"
FEW_EVENTS = 2_000
"""Up to so many, a plan that was made for an empty table will do."""

# What a test could have added, dropped or altered in the schema.
_SHAPE = """
SELECT (SELECT array_agg((c.oid, c.reloptions)::text ORDER BY c.oid) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'onetray'),
    (SELECT array_agg(o.oid ORDER BY o.oid) FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
        WHERE n.nspname = 'onetray'),
    (SELECT array_agg(oid ORDER BY oid) FROM pg_trigger),
    (SELECT array_agg(p.oid ORDER BY p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname IN ('onetray', 'public')),
    (SELECT array_agg(a.attname ORDER BY a.attrelid, a.attnum) FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'onetray')
"""
_HAS_FEW_EVENTS = f"SELECT count(*) <= {FEW_EVENTS} FROM (SELECT 1 FROM onetray.event LIMIT {FEW_EVENTS + 1}) AS e"
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL(%s::int[])
    AND backend_type = 'client backend'
"""
# Tables that are referred to come last.
_TABLES = """
SELECT format('onetray.%I', tablename) FROM pg_tables
WHERE schemaname = 'onetray' AND tablename NOT IN ('migration', 'statistic_cursor')
ORDER BY array_position(ARRAY['policy', 'namespace'], tablename::text) NULLS FIRST, tablename = 'kind' DESC
"""
_COUNT_NOTHING = "UPDATE onetray.statistic_cursor SET since = 0, upto = 0, counted_at = 0, removed_at = 0"
_SEQUENCES = "SELECT format('onetray.%I', sequencename) FROM pg_sequences WHERE schemaname = 'onetray'"


class Keeper:
    """The connection to one database that outlives the tests."""

    def __init__(self, url: str) -> None:
        self.url = url
        keep_connections(url)
        self._connection = _connect(url)
        self._shape = self._shape_now()
        self._tables = [name for (name,) in self._connection.execute(_TABLES)]
        self._sequences = [name for (name,) in self._connection.execute(_SEQUENCES)]

    def verify(self) -> Findings | None:
        """What the verifier finds, or None where a plan made for small tables would take too long."""
        connection = self._connection
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            small = connection.execute(_HAS_FEW_EVENTS).fetchall() == [(True,)]
            return look(PostgresSnapshot(connection), "postgres") if small else None
        finally:
            # After a rollback psycopg would forget what it has prepared.
            connection.execute("COMMIT")

    def empty(self) -> bool:
        """Take every row out and start the sequences again; False when the schema is not what it was."""
        try:
            return self._empty()
        except psycopg.OperationalError:  # A test has ended every connection to its database.
            self._connection.close()
            self._connection = _connect(self.url)
            return self._empty()

    def _empty(self) -> bool:
        connection = self._connection
        connection.execute(_END_OTHERS, (kept_pids(self.url),))
        if self._shape_now() != self._shape:
            return False
        with connection.transaction(), connection.pipeline():
            for table in self._tables:
                connection.execute(f"DELETE FROM {table}".encode())
            connection.execute(_COUNT_NOTHING)
            connection.execute("SELECT setval(name, 1, false) FROM unnest(%s::text[]) AS name", (self._sequences,))
        return True

    def _shape_now(self) -> object:
        return self._connection.execute(_SHAPE).fetchone()

    def close(self) -> None:
        drop_connections(self.url)
        self._connection.close()


def _connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, application_name=KEEPER)


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
