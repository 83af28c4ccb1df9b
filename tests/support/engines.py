"""Engines for tests: one of each store, on a virtual clock, verified at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from onetray.config import EngineConfig
from onetray.domain.clock import Clock, VirtualClock
from onetray.engine import Engine
from onetray.store import open_store
from onetray.store.postgres import PostgresStore
from onetray.verify import verify
from tests.support.databases import is_lent, verified_by_keeper


@contextmanager
def engine_on(
    url: str, clock: Clock | None = None, *, seed: int | None = 1, config: EngineConfig | None = None
) -> Iterator[Engine]:
    """An engine on a migrated database. The database is verified when the test is done."""
    store = open_store(url, clock)
    if not is_lent(url):
        store.migrate()
    engine = Engine(store, seed=seed, config=config)
    try:
        yield engine
        must_verify(engine)
    finally:
        engine.close()


@cache
def migrated_file() -> bytes:
    """A SQLite file that is migrated and has no rows."""
    with tempfile.TemporaryDirectory(prefix="onetray-migrated-") as folder:
        path = Path(folder) / "jobs.db"
        store = open_store(f"sqlite:///{path}")
        store.migrate()
        store.close()
        return path.read_bytes()


def migrated_sqlite(folder: Path) -> str:
    """The URL of a new SQLite file in the folder that is migrated and has no rows."""
    path = folder / "jobs.db"
    path.write_bytes(migrated_file())
    return f"sqlite:///{path}"


def open_migrated(url: str) -> Engine:
    """An engine on a database that is brought up to date first."""
    store = open_store(url)
    store.migrate()
    return Engine(store, seed=1)


def must_verify(engine: Engine) -> None:
    """Fail with the offending rows when a rule is broken."""
    store = engine.store
    lent = verified_by_keeper(store.url) if isinstance(store, PostgresStore) else None
    found = lent or verify(store)
    assert not found.violations, found.violations


__all__ = ["VirtualClock", "engine_on", "migrated_sqlite", "must_verify", "open_migrated"]
