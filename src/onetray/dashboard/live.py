"""The live hub: renders the pages that are watched, and sends the fragments that have changed.

Owns when a page is rendered: after a commit of any process, or after a few seconds, at most once a second, and never
for more than a share of one core. All who watch the same page with the same rights share its renders. Without a
watcher it does nothing. Runs on the event loop; a thread renders, another waits for commits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from onetray.dashboard.render import Rendered, digest
from onetray.http.auth.scopes import Principal
from onetray.http.services import Services
from onetray.http.streams.sse import Frames, frame

logger = logging.getLogger("onetray.dashboard")

EVERY_S = 1.0
"""A page is rendered at most this often."""
CLOCK_S = 5.0
"""A page is rendered at least this often: deadlines pass without a commit."""
SHARE = 0.15
"""The most of one core that rendering takes: after a render of 150 ms, the next waits for 850 ms."""
GATHER_S = 0.2
"""How long commits are gathered before the loop hears of them."""
RETRY_MS = 2_000


class Fragment(NamedTuple):
    """The HTML of a fragment, with marks, and its hash."""

    hash: str
    html: str


class Watched(NamedTuple):
    """A page as some callers see it."""

    url: str
    principal: Principal
    """Without its token: those of the same name and rights see the same."""


@dataclass(eq=False)
class Watch:
    """A watched page: its last render, and how many streams show it."""

    key: Watched
    render: Callable[[], Rendered]
    watchers: int = 0
    fragments: dict[str, Fragment] = field(default_factory=dict)
    generation: int = -1
    """The commits that the last render has seen."""
    rendered_at: float = float("-inf")
    failed: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, by each render."""

    def announce(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class LiveHub:
    """One for each app."""

    def __init__(self, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._services, self._wake, self._now = services, services.engine.wake, monotonic
        self._watches: dict[Watched, Watch] = {}
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        """Set when something may be due earlier than it was."""
        self._free_at = float("-inf")
        """When the share of the core allows the next render."""
        self.closing = False
        self.renders = 0
        """How often a watched page was rendered."""

    async def frames(
        self, key: Watched, render: Callable[[], Rendered], have: dict[str, str], fill: Callable[[str], str]
    ) -> Frames:
        """The frames of a stream: the fragments that differ from those that the browser has, whenever some do.

        `fill` completes a fragment for this session.
        """
        yield b"retry: %d\n\n" % RETRY_MS
        with self._watching(key, render) as watch:
            while not self.closing and not watch.failed:
                news = {name: f for name, f in watch.fragments.items() if have.get(name) != f.hash}
                if news:
                    have.update({name: fragment.hash for name, fragment in news.items()})
                    yield frame("fragments", {name: {"hash": f.hash, "html": fill(f.html)} for name, f in news.items()})
                    continue
                await watch.news.wait()

    @contextmanager
    def _watching(self, key: Watched, render: Callable[[], Rendered]) -> Iterator[Watch]:
        watch = self._watches.setdefault(key, Watch(key, render))
        watch.watchers += 1
        self._nudge.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="onetray-live")
        try:
            yield watch
        finally:
            watch.watchers -= 1
            # One that has failed was replaced, perhaps.
            if not watch.watchers and self._watches.get(key) is watch:
                del self._watches[key]
            if not self._watches and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        """Render what is watched when it is due. Cancelled when nothing is watched."""
        with self._commits():
            while True:
                self._nudge.clear()
                watch = min(self._watches.values(), key=self._due_at, default=None)
                wait_s = CLOCK_S if watch is None else self._due_at(watch) - self._now()
                if watch is None or wait_s > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._nudge.wait()
                    continue
                await self._render(watch)

    def _due_at(self, watch: Watch) -> float:
        """When to render a page next: after a commit soon, without one later."""
        interval_s = EVERY_S if watch.generation != self._wake.generation else CLOCK_S
        return max(watch.rendered_at + interval_s, self._free_at)

    async def _render(self, watch: Watch) -> None:
        watch.rendered_at, watch.generation = self._now(), self._wake.generation
        try:
            fragments = (await self._services.read(watch.render)).fragments
        except Exception as error:
            # Those who watch it connect again, or get the error as a page.
            logger.warning("a watched page could not be rendered, %s: %s", watch.key.url, error)
            watch.failed = True
            self._watches.pop(watch.key, None)
        else:
            watch.fragments = {name: Fragment(digest(html), str(html)) for name, html in fragments.items()}
        self.renders += 1
        self._free_at = watch.rendered_at + (self._now() - watch.rendered_at) / SHARE
        watch.announce()

    @contextmanager
    def _commits(self) -> Iterator[None]:
        """A thread that waits for commits of any process, and nudges the loop."""
        stopped, loop = threading.Event(), asyncio.get_running_loop()

        def listen() -> None:
            generation = self._wake.generation
            while not stopped.wait(GATHER_S) and not self._wake.closed:
                latest = self._wake.wait(generation, CLOCK_S)
                if latest != generation:
                    generation = latest
                    with suppress(RuntimeError):  # The loop has ended.
                        loop.call_soon_threadsafe(self._nudge.set)

        threading.Thread(target=listen, name="onetray-live", daemon=True).start()
        try:
            yield
        finally:
            stopped.set()
            # The thread may be waiting.
            self._wake.notify()

    def close(self) -> None:
        """End all streams: the server stops."""
        self.closing = True
        for watch in self._watches.values():
            watch.announce()
