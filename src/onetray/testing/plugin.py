"""Pytest fixtures: `onetray_harness` and `onetray_clock`, for the app that your fixture `onetray_app` returns.

pytest loads this module at every start, so it imports the engine only in the fixtures.
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
    """The app under test. Override this fixture."""
    pytest.fail(
        "the fixture onetray_app is not defined. Put this into conftest.py:\n\n"
        "    @pytest.fixture\n    def onetray_app():\n        return app  # your Onetray(…)\n",
        pytrace=False,
    )


@pytest.fixture
def onetray_harness(onetray_app: Onetray, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The app on an engine in memory. After a test that passed, the database is verified."""
    from onetray.testing.harness import Harness

    harness = Harness(onetray_app)
    harness.open()
    yield harness
    harness.close(check=not request.node.stash.get(_FAILED, False))


@pytest.fixture
def onetray_clock(onetray_harness: Harness) -> VirtualClock:
    """The virtual clock of the harness. `onetray_harness.advance` advances it and does what is due."""
    return onetray_harness.clock
