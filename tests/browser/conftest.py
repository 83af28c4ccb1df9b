"""Pages in a real browser, and servers for them to look at.

A test with the fixture `page` fails when a page writes an error to its console, throws, or asks another host for
something. All tests in this folder run in one process, so that a run of the tests starts one browser
(see schedule.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect
from uuid_utils import uuid4

from onetray.domain.token import OPERATE, READ, SUBMIT
from onetray.engine import Engine
from tests.support import browser as browsers
from tests.support.browser import PATIENCE_MS
from tests.support.chromium import NoBrowser, find_chromium
from tests.support.databases import Databases
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.live import Live, serving

HERE = Path(__file__).parent
OpenPage = Callable[..., Page]
ROLES = {"ada": (READ, SUBMIT, OPERATE), "rex": (READ,)}


class Site(NamedTuple):
    """A server, and the engine that it shows."""

    url: str
    engine: Engine
    live: Live


class Guarded(NamedTuple):
    """A server that wants a token: one of an operator, one of a reader."""

    url: str
    engine: Engine
    operator: str
    reader: str


expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install a browser before the first test: it may take longer than a test is allowed to."""
    if any(HERE in item.path.parents for item in session.items) and not session.config.option.collectonly:
        with suppress(NoBrowser):  # Only the tests that need one fail.
            find_chromium()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of this process."""
    with browsers.browser() as started:
        yield started


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page in a profile of its own, e.g. `open_page(java_script_enabled=False)`. All are watched for faults."""
    with browsers.in_use(browser), ExitStack() as profiles:

        def opened(**options: Any) -> Page:
            return profiles.enter_context(browsers.profile(browser, **options))

        yield opened


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page in a fresh profile."""
    return open_page()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without tokens on each database in turn, for the tests of a module. Each test has queues of its own."""
    with _database(request, tmp_path_factory) as url, engine_on(url) as engine, serving(engine) as live:
        yield Site(live.url, engine, live)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """The same with tokens."""
    with _database(request, tmp_path_factory) as url, engine_on(url) as engine:
        operator, reader = (engine.tokens.create(name, [*scopes]) for name, scopes in ROLES.items())
        with serving(engine) as live:
            yield Guarded(live.url, engine, operator.text, reader.text)


@contextmanager
def _database(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield migrated_sqlite(folders.mktemp("site"))
        return
    lent: Databases = request.getfixturevalue("databases")
    with lent.database() as url:
        yield url


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"queue-{uuid4().hex[:12]}"
