"""Migrated PostgreSQL databases that are emptied and used again.

Making and dropping a database takes a quarter of a second; emptying a small one takes milliseconds. A database
whose schema a test has changed is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import psycopg.sql

from onetray.store import open_store
from tests.support.cluster import Server

# What a test could have added, dropped or altered in the schema.
_SHAPE = """
SELECT (SELECT array_agg(c.oid ORDER BY c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'onetray'),
    (SELECT array_agg(o.oid ORDER BY o.oid) FROM pg_constraint o JOIN pg_namespace n ON n.oid = o.connamespace
        WHERE n.nspname = 'onetray'),
    (SELECT array_agg(oid ORDER BY oid) FROM pg_trigger),
    (SELECT array_agg(p.oid ORDER BY p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname IN ('onetray', 'public')),
    (SELECT array_agg(a.attname ORDER BY a.attrelid, a.attnum) FROM pg_attribute a
        JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'onetray')
"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
# Tables that are referred to come last.
_TABLES = """
SELECT format('onetray.%I', tablename) FROM pg_tables WHERE schemaname = 'onetray' AND tablename <> 'migration'
ORDER BY array_position(ARRAY['policy', 'namespace'], tablename::text) NULLS FIRST, tablename = 'kind' DESC
"""
_SEQUENCES = "SELECT format('onetray.%I', sequencename) FROM pg_sequences WHERE schemaname = 'onetray'"


class Databases:
    """Databases on one server, each lent to one test at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._free: list[tuple[str, object]] = []
        self._made: list[str] = []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a migrated database without a row in it."""
        url, shape = self._free.pop() if self._free else self._new()
        try:
            yield url
        finally:
            if _emptied(url, shape):
                self._free.append((url, shape))
            else:
                self._server.drop_database(url)
                self._made.remove(url)

    def _new(self) -> tuple[str, object]:
        url = self._server.create_database()
        self._made.append(url)
        store = open_store(url)
        store.migrate()
        store.close()
        with psycopg.connect(url, autocommit=True) as connection:
            # Nobody pulls the plug on this server: the crash tests start their own.
            name = psycopg.sql.Identifier(connection.info.dbname)
            connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
            return url, connection.execute(_SHAPE).fetchone()

    def close(self) -> None:
        for url in self._made:
            self._server.drop_database(url)


def _emptied(url: str, shape: object) -> bool:
    """Take every row out and start the sequences again; False when the schema is not what it was."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_END_OTHERS)
        if connection.execute(_SHAPE).fetchone() != shape:
            return False
        tables = [name for (name,) in connection.execute(_TABLES)]
        sequences = [name for (name,) in connection.execute(_SEQUENCES)]
        with connection.transaction():
            connection.execute("; ".join(f"DELETE FROM {name}" for name in tables).encode())
            connection.execute("SELECT setval(name, 1, false) FROM unnest(%s::text[]) AS name", (sequences,))
        return True
