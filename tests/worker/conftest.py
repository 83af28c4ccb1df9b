"""An app on an empty database. After each test the database is verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray import Onetray
from tests.support.engines import migrated_sqlite, must_verify


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLite and one PostgreSQL: its versions differ below the engine, not above it."""
    if request.param == "postgres":
        return str(request.getfixturevalue("migrated_url"))
    return migrated_sqlite(tmp_path)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Onetray]:
    """An app on SQLite, for tests in which the database plays no part."""
    yield from _app(migrated_sqlite(tmp_path))


@pytest.fixture
def either_app(database_url: str) -> Iterator[Onetray]:
    """An app on each of the two databases."""
    yield from _app(database_url)


def _app(url: str) -> Iterator[Onetray]:
    app = Onetray(url)
    yield app
    try:
        must_verify(app.engine)
    finally:
        app.close()
