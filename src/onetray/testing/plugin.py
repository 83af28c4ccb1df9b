"""Fixtures for pytest: `onetray_harness` and `onetray_clock`, on the app that your fixture `onetray_app` gives.

pytest loads this at every start, so nothing of the engine is loaded before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.clock import VirtualClock
    from onetray.testing.harness import Harness

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def onetray_app() -> Onetray:
    """The app under test: yours to define."""
    pytest.fail(
        "onetray does not know your app. Put this into conftest.py:\n\n"
        "    @pytest.fixture\n    def onetray_app():\n        return app  # your Onetray(…)\n",
        pytrace=False,
    )


@pytest.fixture
def onetray_harness(onetray_app: Onetray, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The app on an engine in memory. When the test has passed, the database is verified."""
    from onetray.testing.harness import Harness

    harness = Harness(onetray_app)
    harness.open()
    yield harness
    harness.close(check=not request.node.stash.get(_FAILED, False))


@pytest.fixture
def onetray_clock(onetray_harness: Harness) -> VirtualClock:
    """The clock of the harness. It moves only when told to; `onetray_harness.advance` also does what is due."""
    return onetray_harness.clock
