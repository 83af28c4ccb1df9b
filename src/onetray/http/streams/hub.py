"""The hub: one reader of the feed for all streams of a process.

Owns the fan-out on the loop; the thread that reads is in reader.py. A stream of the feed has a bounded queue here;
the stream of one job is only told that there is something new, and reads it by itself.

    thread: feed.read ─▶ loop: followers' queues, watchers' signals ─▶ streams
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from onetray.domain.errors import Unavailable
from onetray.engine import Engine
from onetray.http.streams.reader import Batch, Reading

PATIENCE_S = 10.0
"""How long a stream waits for the reader to begin, while the database is away."""


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
    """All of it runs on the loop, but for `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: set[Follower] = set()
        self._watchers: dict[str, set[Watcher]] = {}
        self._watched: dict[int, int] = {}
        self._reading: Reading | None = None
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

    def close(self) -> None:
        """Have every stream say goodbye and end. May be called from any thread, and more than once."""
        self.closing = True
        # Held here: the last stream may leave on its loop meanwhile, and take it away.
        reading = self._reading
        if reading is not None:
            reading.end()
            reading.on_loop(self._wake_all)

    def _wake_all(self) -> None:
        if self._reading is not None:
            self._reading.begun.set()
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
            self._reading = Reading(self._engine, self._deliver, self._followers, self._watched)
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
            keys = set(spoke)
            for those in self._watchers.values():
                for watcher in those:
                    if watcher.key in keys:
                        watcher.signal.set()
