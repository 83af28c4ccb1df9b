"""Two databases are enough here: these tests are about processes, not about versions of PostgreSQL."""

from pathlib import Path

import pytest

from onetray.store import open_store


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
