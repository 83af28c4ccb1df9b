"""Pages in a real browser, and servers for them to look at.

A test with the fixture `page` fails when a page writes an error to its console, throws, or asks another host for
something. All tests in this folder run in one process, so that a run of the tests starts one browser
(see schedule.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support import browser as browsers
from tests.support.browser import PATIENCE_MS, Watch
from tests.support.chromium import NoBrowser, find_chromium

HERE = Path(__file__).parent
OpenPage = Callable[..., Page]

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
            context, watch = profiles.enter_context(browsers.profile(browser, **options))
            page = context.new_page()
            _watches[page] = watch
            return page

        yield opened


_watches: dict[Page, Watch] = {}


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page in a fresh profile."""
    return open_page()


def watch_of(page: Page) -> Watch:
    return _watches[page]
