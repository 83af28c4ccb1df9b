"""Pages in a real browser, and servers for them to look at.

A test with the fixture `page` fails when a page writes an error to its console, throws, or asks another host for
something. All tests in this folder run in one process (see schedule.py), and share a browser, its profile, and the
servers: a test has queues, kinds and labels of its own. What depends on the database takes `site`, and runs on both;
what is a matter of the browser alone takes `any_site`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from uuid_utils import uuid4

from onetray.config import HttpConfig
from onetray.domain.token import ADMIN, OPERATE, READ, SUBMIT
from onetray.engine import Engine
from tests.support import browser as browsers
from tests.support.browser import PATIENCE_MS
from tests.support.chromium import NoBrowser, find_chromium
from tests.support.databases import Databases
from tests.support.engines import engine_on, migrated_sqlite
from tests.support.live import Live, serving

HERE = Path(__file__).parent
OpenPage = Callable[..., Page]
DATABASES = ("sqlite", "postgres")
ROLES = {"ada": (READ, SUBMIT, OPERATE), "rex": (READ,), "root": (ADMIN,)}
CACHE_S = 0.2
"""How long servers take to hear of a token that is revoked."""


class Site(NamedTuple):
    """A server, and the engine that it shows."""

    url: str
    engine: Engine
    live: Live


class Guarded(NamedTuple):
    """A server that wants a token: one of an operator, one of a reader, one of an administrator."""

    url: str
    engine: Engine
    operator: str
    reader: str
    admin: str


class Sites(NamedTuple):
    """The servers by their database, each started by the first test that asks for it."""

    open: Callable[[str], Site]
    guarded: Callable[[str], Guarded]


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


@pytest.fixture(scope="session")
def shared_profile(browser: Browser) -> Iterator[BrowserContext]:
    """The profile of all pages that need no options of their own."""
    with ExitStack() as stack:
        with browsers.in_use(browser):
            opened = stack.enter_context(browsers.profile(browser))
        yield opened
        with browsers.in_use(browser):
            stack.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page in a profile of its own, e.g. `open_page(java_script_enabled=False)`. All are watched for faults."""
    with browsers.in_use(browser), ExitStack() as profiles:

        def opened(**options: Any) -> Page:
            return profiles.enter_context(browsers.page_alone(browser, **options))

        yield opened


@pytest.fixture
def page(browser: Browser, shared_profile: BrowserContext) -> Iterator[Page]:
    """A page without cookies."""
    with browsers.in_use(browser), browsers.page_in(shared_profile) as opened:
        yield opened


@pytest.fixture(scope="session")
def sites(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with ExitStack() as stack:

        def engine(database: str) -> Engine:
            if database == "sqlite":
                return stack.enter_context(engine_on(migrated_sqlite(tmp_path_factory.mktemp("site"))))
            return stack.enter_context(engine_on(stack.enter_context(databases.database())))

        @cache
        def started(database: str) -> Site:
            own = engine(database)
            live = stack.enter_context(serving(own))
            return Site(live.url, own, live)

        @cache
        def guarded(database: str) -> Guarded:
            own = engine(database)
            operator, reader, admin = (own.tokens.create(name, [*scopes]).text for name, scopes in ROLES.items())
            live = stack.enter_context(serving(own, HttpConfig(token_cache_s=CACHE_S)))
            return Guarded(live.url, own, operator, reader, admin)

        yield Sites(started, guarded)


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, sites: Sites) -> Site:
    """A server without tokens, on each database in turn."""
    return sites.open(request.param)


@pytest.fixture(params=DATABASES)
def guarded(request: pytest.FixtureRequest, sites: Sites) -> Guarded:
    """The same with tokens."""
    return sites.guarded(request.param)


@pytest.fixture
def any_site(sites: Sites) -> Site:
    """A server without tokens, for what does not depend on its database."""
    return sites.open(DATABASES[0])


@pytest.fixture
def any_guarded(sites: Sites) -> Guarded:
    """The same with tokens."""
    return sites.guarded(DATABASES[0])


@pytest.fixture
def queue() -> str:
    """The name of a queue that no other test uses."""
    return f"queue-{uuid4().hex[:12]}"
