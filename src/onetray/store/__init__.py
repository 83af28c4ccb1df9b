"""The databases: one text of SQL for both, a small class for what differs."""

from __future__ import annotations

from typing import Any

from onetray.domain.clock import Clock
from onetray.domain.errors import StoreError
from onetray.store.base import Store


def open_store(
    url: str, clock: Clock | None = None, *, create: bool = True, migrate: bool = True, **options: Any
) -> Store:
    """Open the database that a URL names. SQLite is migrated by itself; PostgreSQL by `onetray migrate`.

    `migrate=False` leaves the schema as it stands, for those who only look.
    """
    if not isinstance(url, str):
        raise StoreError(
            f"a database is named by a URL, not by {type(url).__name__}: write sqlite:///… or postgresql://…"
        )
    if url.startswith("sqlite:"):
        from onetray.store.sqlite import SqliteStore

        lite = SqliteStore(url, clock, create=create, **options)
        if migrate:
            lite.migrate()
        return lite
    if url.startswith(("postgresql:", "postgres:")):
        from onetray.store.postgres import PostgresStore

        return PostgresStore(url, clock, **options)
    raise StoreError(f"{url.split('://')[0]!r} is no database that onetray knows: write sqlite:///… or postgresql://…")
