"""An app whose engine is a server's: a real one, on a loopback port. What is left in its database is verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.config import EngineConfig
from onetray.engine import Engine
from onetray.remote.engine import RemoteEngine
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.servers import Served, served


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two databases are enough here: versions of PostgreSQL differ below the server, not above it."""
    if request.param == "postgres":
        return str(request.getfixturevalue("migrated_url"))
    return migrated_sqlite(tmp_path)


@contextmanager
def at_work(url: str) -> Iterator[tuple[Engine, Served]]:
    """A server with its janitor, on a database that is verified afterwards."""
    with engine_on(url) as engine, served(engine) as server:
        engine.janitor().start()
        yield engine, server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with at_work(migrated_sqlite(tmp_path)) as (_, running):
        yield running


@pytest.fixture
def app(server: Served) -> Iterator[Onetray]:
    """An app on a server with SQLite, for what the database has no part in."""
    with Onetray(server.url) as opened:
        yield opened


@pytest.fixture
def either_app(database_url: str) -> Iterator[Onetray]:
    """An app on a server with each database in turn."""
    with at_work(database_url) as (_, running), Onetray(running.url) as opened:
        yield opened


@pytest.fixture
def remote(server: Served) -> Iterator[RemoteEngine]:
    with RemoteEngine(server.url, config=EngineConfig(call_timeout_s=5.0)) as opened:
        assert isinstance(opened, RemoteEngine)
        yield opened
