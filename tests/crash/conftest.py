"""Two databases are enough here: these tests are about processes, not about versions of PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onetray import Onetray
from tests.support.engines import migrated_sqlite, must_verify
from tests.support.workers import Traces


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind in turn. It is a new one, so that its deadlocks are this test's own."""
    if request.param == "sqlite":
        return migrated_sqlite(tmp_path)
    url: str = request.getfixturevalue("own_url")
    return url


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Onetray]:
    """The app of the worker processes, for this process: on SQLite, verified at the end."""
    from tests.support import workload

    app = workload.app
    app.database = migrated_sqlite(tmp_path)
    yield app
    try:
        must_verify(app.engine)
    finally:
        app.close()


@pytest.fixture
def traces(tmp_path: Path) -> Traces:
    return Traces(tmp_path)
