"""The databases: shared SQL for SQLite and PostgreSQL, and a class for each with what differs."""

from __future__ import annotations

from typing import Any

from onetray.config import plain_url
from onetray.domain.clock import Clock
from onetray.domain.errors import StoreError
from onetray.store.base import Store


def open_store(
    url: str, clock: Clock | None = None, *, create: bool = True, migrate: bool = True, **options: Any
) -> Store:
    """Open a database. Migrates SQLite unless `migrate` is False; PostgreSQL needs `onetray migrate`."""
    if not isinstance(url, str):
        raise StoreError(f"the database must be a URL, not {type(url).__name__}: write sqlite:///… or postgresql://…")
    url = plain_url(url)
    if url.startswith("sqlite:"):
        from onetray.store.sqlite import SqliteStore

        lite = SqliteStore(url, clock, create=create, **options)
        if migrate:
            lite.migrate()
        return lite
    if url.startswith(("postgresql:", "postgres:")):
        from onetray.store.postgres import PostgresStore

        return PostgresStore(url, clock, **options)
    raise StoreError(f"unknown database {url.split('://')[0]!r}: write sqlite:///… or postgresql://…")
