"""An app for each test, and ways to run what it submits."""

from collections.abc import Iterator

import pytest

from onetray import Onetray
from onetray.testing import Harness


@pytest.fixture
def app() -> Onetray:
    """An app whose own database cannot be opened: a test has to put another in its place."""
    return Onetray("sqlite:////nowhere/at/all.db")


@pytest.fixture
def harness(app: Onetray) -> Iterator[Harness]:
    """The app in memory."""
    with Harness(app) as running:
        yield running


@pytest.fixture
def anywhere(app: Onetray, database_url: str) -> Iterator[Harness]:
    """The app on each store in turn."""
    with Harness(app, database=database_url) as running:
        yield running
