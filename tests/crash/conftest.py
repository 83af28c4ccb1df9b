"""Two databases are enough here: these tests are about processes, not about versions of PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray import Onetray
from onetray.store import open_store
from tests.support.engines import must_verify
from tests.support.workers import Traces


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind in turn. It is a new one, so that its deadlocks are this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("pg_url")
    store = open_store(url)
    store.migrate()
    store.close()
    return url


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Onetray]:
    """The app of the worker processes, for this process: on SQLite, verified at the end."""
    from tests.support import workload

    app = workload.app
    app.database = f"sqlite:///{tmp_path / 'jobs.db'}"
    app.engine.store.migrate()
    yield app
    try:
        must_verify(app.engine)
    finally:
        app.close()


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    return Traces(tmp_path)
