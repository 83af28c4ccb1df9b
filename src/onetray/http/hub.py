"""The hub: one reader of the feed for all streams of a process.

Owns the thread that reads, and the fan-out on the loop. A stream of the whole feed has a bounded queue here; the stream
of one job is only told that there is something new, and reads it by itself.

    thread: feed.read ─▶ loop: followers' queues, watchers' signals ─▶ streams
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from onetray.engine import Engine
from onetray.errors import Unavailable
from onetray.feed import PAGE, Pace
from onetray.http.shown import shown
from onetray.http.sse import frame
from onetray.http.wire import plain
from onetray.model import Event

logger = logging.getLogger("onetray.http")

LOOK_EVERY_S = 0.02
"""How often it is looked at most whether watched tasks have logged something: lines are no events."""
STOP_EVERY_S = 0.1
PATIENCE_S = 10.0
"""How long a stream waits for the reader to begin, while the database is away."""


@dataclass(slots=True)
class Batch:
    """Events as they were read once for all, and the cursor after them."""

    events: list[Event]
    cursor: int
    frames: dict[int, bytes] = field(default_factory=dict)
    """Those that are written for the wire already, by the events' ids."""


def written(engine: Engine, events: list[Event]) -> dict[int, bytes]:
    """Events for the wire, by their ids."""
    return {e.id: frame(e.type, plain(e), e.id) for e in shown(engine, events)}


class Follower:
    """A stream of the feed that has caught up: batches wait here until it has sent them."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._waiting: list[Batch] = []
        self.signal = asyncio.Event()
        self.lagging = False

    def put(self, batch: Batch) -> None:
        if self.lagging:
            return
        self._held += len(batch.events)
        if self._held > self._most:
            # It will be told where to go on from: what waited here is read again.
            self.lagging, self._waiting = True, []
        elif self._waiting and not batch.events:
            self._waiting[-1].cursor = batch.cursor
        else:
            self._waiting.append(Batch(batch.events, batch.cursor, batch.frames))
        self.signal.set()

    def reset(self) -> None:
        """Forget what waits: it is read by the stream itself."""
        self._waiting, self._held, self.lagging = [], 0, False

    def take(self) -> list[Batch]:
        taken, self._waiting, self._held = self._waiting, [], 0
        self.signal.clear()
        return taken


class Watcher:
    """A stream of one job: it is told that there is something new."""

    def __init__(self, ids: frozenset[str], key: int | None) -> None:
        self.ids, self.key = ids, key
        self.signal = asyncio.Event()


class Hub:
    """All of it runs on the loop but `_run`, which has a thread while there is anybody to read for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: set[Follower] = set()
        self._watchers: dict[str, set[Watcher]] = {}
        self._watched: dict[int, int] = {}
        self._reading: _Reading | None = None
        self._users = 0
        self.closing = False

    # What streams use.

    @contextmanager
    def following(self, most: int) -> Iterator[Follower]:
        """Be given everything that is read from now on: whatever lies past `at()`."""
        with self._used():
            follower = Follower(most)
            self._followers.add(follower)
            try:
                yield follower
            finally:
                self._followers.discard(follower)

    @contextmanager
    def watching(self, *ids: str, key: int | None = None) -> Iterator[Watcher]:
        """Be told of events of these jobs and tasks, and of what the task with this key says beside."""
        watcher = Watcher(frozenset(ids), key)
        with self._used():
            for id_ in watcher.ids:
                self._watchers.setdefault(id_, set()).add(watcher)
            if key is not None:
                self._watched[key] = self._watched.get(key, 0) + 1
            try:
                yield watcher
            finally:
                self._forget(watcher)

    async def at(self) -> int:
        """How far the feed has been read for all. Only for those who follow or watch."""
        assert self._reading is not None
        if self._reading.at is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._reading.begun.wait()
        if self._reading.at is None:
            raise Unavailable("the feed cannot be read now: connect again in a moment")
        return self._reading.at

    async def moved(self, after: int, timeout_s: float) -> int:
        """Wait until the feed was read past a cursor, or the time is over. Answers how far it was read."""
        at = after
        with self._used(), suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (at := await self.at()) <= after and not self.closing:
                    assert self._reading is not None
                    self._reading.moved.clear()
                    await self._reading.moved.wait()
        return at

    def close(self) -> None:
        """Have every stream say goodbye and end. May be called from any thread, and more than once."""
        self.closing = True
        if self._reading is not None:
            self._reading.end()
            self._reading.on_loop(self._wake_all)

    def _wake_all(self) -> None:
        if self._reading is not None:
            self._reading.begun.set()
            self._reading.moved.set()
        for follower in self._followers:
            follower.signal.set()
        for those in self._watchers.values():
            for watcher in those:
                watcher.signal.set()

    def _forget(self, watcher: Watcher) -> None:
        for id_ in watcher.ids:
            those = self._watchers[id_]
            those.discard(watcher)
            if not those:
                del self._watchers[id_]
        if watcher.key is not None:
            self._watched[watcher.key] -= 1
            if not self._watched[watcher.key]:
                del self._watched[watcher.key]

    @contextmanager
    def _used(self) -> Iterator[None]:
        """The thread reads while there is anybody to read for."""
        if self.closing:
            raise Unavailable("the server is stopping: connect again in a moment")
        self._users += 1
        if self._reading is None:
            self._reading = _Reading(self._engine, self._followers, self._watched, self._deliver)
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._reading.end()
                self._reading = None

    def _deliver(self, batch: Batch, spoke: list[int]) -> None:
        for follower in self._followers:
            follower.put(batch)
        if not self._watchers:
            return
        for event in batch.events:
            for id_ in (event.job_id, event.entity_id):
                for watcher in self._watchers.get(id_, ()):
                    watcher.signal.set()
        if spoke:
            told = set(spoke)
            for those in self._watchers.values():
                for watcher in those:
                    if watcher.key in told:
                        watcher.signal.set()


class _Reading:
    """The thread, and where it is. Another one begins when all streams had ended."""

    def __init__(
        self,
        engine: Engine,
        followers: set[Follower],
        watched: dict[int, int],
        deliver: Callable[[Batch, list[int]], None],
    ) -> None:
        self._engine, self._followers, self._watched, self._deliver = engine, followers, watched, deliver
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._room = threading.Semaphore(2)
        self._said: dict[int, Any] = {}
        self.begun, self.moved = asyncio.Event(), asyncio.Event()
        self.at: int | None = None
        threading.Thread(target=self._run, name="onetray-hub", daemon=True).start()

    def end(self) -> None:
        self._stop.set()
        # It may be waiting for news.
        self._engine.wake.heard(work=False)

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended, and its streams with it.
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self) -> None:
        feed, pace = self._engine.feed, Pace(self._engine.feed, self._stop)
        cursor: int | None = None
        while not pace.over:
            seen = self._engine.wake.generation
            try:
                if cursor is None:
                    cursor = feed.tail()
                    self.on_loop(self._take, Batch([], cursor), [])
                page = feed.read(cursor, PAGE)
                spoke = self._who_spoke()
                frames = written(self._engine, page.events) if self._followers else {}
            except Exception as e:
                if not isinstance(e, Unavailable):
                    logger.exception("the feed could not be read for streams")
                pace.back_off(e)
                continue
            if page.next_cursor != cursor or spoke:
                self._hand_over(Batch(page.events, page.next_cursor, frames), spoke)
            pace.keep(seen, moved=page.next_cursor != cursor, more=len(page.events) == PAGE)
            cursor = page.next_cursor
            if self._watched and len(page.events) < PAGE:
                self._stop.wait(LOOK_EVERY_S)
        self.on_loop(self.begun.set)

    def _hand_over(self, batch: Batch, spoke: list[int]) -> None:
        """Give the loop what was read. It has two batches at most that it has not taken: then the reader waits."""
        while not self._stop.is_set():
            if self._room.acquire(timeout=STOP_EVERY_S):
                self.on_loop(self._taken, batch, spoke)
                return

    def _taken(self, batch: Batch, spoke: list[int]) -> None:
        self._room.release()
        self._take(batch, spoke)

    def _take(self, batch: Batch, spoke: list[int]) -> None:
        if self._stop.is_set():
            return
        self.at = batch.cursor
        self._deliver(batch, spoke)
        self.begun.set()
        self.moved.set()

    def _who_spoke(self) -> list[int]:
        """Those of the watched tasks that have logged something, or said how far they are: that is no event."""
        keys = list(self._watched)
        if not keys:
            self._said.clear()
            return []
        said = {key: what for key, *what in self._engine.store.read("said_beside", keys=keys)}
        spoke = [key for key, what in said.items() if self._said.get(key) != what]
        self._said = said
        return spoke
