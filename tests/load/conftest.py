"""Two databases are enough here: these tests are about processes, not about versions of PostgreSQL."""

from pathlib import Path

import pytest

from tests.support.engines import migrated_sqlite


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A migrated database of each kind in turn. It is a new one, so that its deadlocks are this test's own."""
    if request.param == "sqlite":
        return migrated_sqlite(tmp_path)
    url: str = request.getfixturevalue("own_url")
    return url
