"""A real browser for tests: one for each test process, and a page for each test, without cookies.

Owns how a page is opened, what counts as a fault of a page, and how it is looked at: by axe, and as a picture. Where
the program comes from is in chromium.py.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.support.chromium import find_chromium

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
HERE = "127.0.0.1"
PATIENCE_MS = 60_000
"""How long an action or an expectation may take on a busy machine."""
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 812}
LIGHT, DARK = "light", "dark"
GRAVE = ("serious", "critical")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser. Its pages are used inside `in_use`."""
    path = find_chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        with _left_alone():
            yield started
        started.close()


@contextmanager
def _left_alone() -> Iterator[None]:
    """Playwright's loop counts as running in this thread until it is stopped: other tests could not run theirs."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


@contextmanager
def in_use(browser: Browser) -> Iterator[None]:
    """The browser may be used in this block, and no other loop may run in it."""
    asyncio._set_running_loop(browser._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


class Watch:
    """What goes wrong on the pages of one profile."""

    def __init__(self, context: BrowserContext) -> None:
        self._problems: list[str] = []
        self._expected: list[str] = []
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self._problems.append(f"{error.error}"))
        context.on("request", self._on_request)

    def expect(self, words: str) -> None:
        self._expected.append(words)

    def forget(self) -> None:
        self._problems, self._expected = [], []

    @property
    def problems(self) -> list[str]:
        return [text for text in self._problems if not any(words in text for words in self._expected)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._problems.append(f"{message.text} ({message.location.get('url')})")

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob", "about") and url.hostname != HERE:
            self._problems.append(f"a request to another host: {request.url}")


_watches: dict[BrowserContext, Watch] = {}


def expect_problem(page: Page, words: str) -> None:
    """Problems with these words in them are what the test is about."""
    _watches[page.context].expect(words)


@contextmanager
def profile(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A profile, which `page_in` opens pages in. A new one costs as much as three pages: tests share them."""
    settings: dict[str, Any] = {"viewport": WIDE, "locale": "en-GB", "timezone_id": "UTC", "reduced_motion": "reduce"}
    context = browser.new_context(**{**settings, **options})
    context.set_default_timeout(PATIENCE_MS)
    _watches[context] = Watch(context)
    try:
        yield context
    finally:
        del _watches[context]
        context.close()


@contextmanager
def page_in(profile: BrowserContext) -> Iterator[Page]:
    """A new page in a profile, without cookies. Fails at the end if it, or another one beside it, had a fault."""
    watch = _watches[profile]
    watch.forget()
    try:
        yield profile.new_page()
        assert not watch.problems, "the page has a fault:\n" + "\n".join(watch.problems)
    finally:
        for page in profile.pages:
            page.close()
        profile.clear_cookies()


@contextmanager
def page_alone(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a profile of its own."""
    with profile(browser, **options) as own, page_in(own) as page:
        yield page


@cache
def _axe_script() -> str:
    return Axe().axe_script


def axe_clean(page: Page) -> None:
    """Fail if axe finds something serious or critical on the page as it is now."""
    _must_be_clean(page, _evaluate(page, f"{_axe_script()};axe.run(document, {{resultTypes: ['violations']}})"))


def contrast_clean(page: Page) -> None:
    """The same about colours alone, on a page that axe has seen: in another theme, nothing else differs."""
    _must_be_clean(
        page, _evaluate(page, "axe.run(document, {resultTypes: ['violations'], runOnly: ['color-contrast']})")
    )


def _must_be_clean(page: Page, found: dict[str, Any]) -> None:
    grave = [violation for violation in found["violations"] if violation["impact"] in GRAVE]
    assert not grave, f"axe on {page.url}:\n" + "\n".join(_described(violation) for violation in grave)


def _described(violation: dict[str, Any]) -> str:
    places = "\n".join(f"    {node['html'][:200]}\n    {node['failureSummary']}" for node in violation["nodes"][:5])
    return f"{violation['id']} ({violation['impact']}): {violation['help']}\n{places}"


def _evaluate(page: Page, expression: str) -> Any:
    """What an expression is on the page. Not by `page.evaluate`, which a strict content security policy forbids."""
    session = page.context.new_cdp_session(page)
    try:
        answer = session.send(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
    finally:
        session.detach()
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"].get("value")


WIDE_PARTS = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    const wide = [...document.body.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > width);
    return wide.map(e => e.cloneNode().outerHTML).slice(0, 8);
}"""


def no_sideways_scroll(page: Page) -> None:
    """Fail if the page is wider than its window."""
    wide = page.evaluate(WIDE_PARTS)
    assert not wide, f"{page.url} is wider than its window:\n" + "\n".join(wide)


def screenshot(page: Page, path: Path, *, whole: bool = True) -> None:
    """A picture of the page: the whole of it, or what the window shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        page.screenshot(path=path, full_page=whole, animations="disabled")
        return
    session = page.context.new_cdp_session(page)
    asked = {"format": "webp", "quality": 85, "captureBeyondViewport": whole}
    path.write_bytes(base64.b64decode(session.send("Page.captureScreenshot", asked)["data"]))
    session.detach()
