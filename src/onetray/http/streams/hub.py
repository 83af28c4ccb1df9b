"""The hub: one reader of the feed for all streams of a process.

Owns the fan-out on the event loop; reader.py is the thread that reads. A stream of the feed has a bounded queue here. A
stream of one job only gets a signal that something changed, and reads the job itself.

    thread: feed.read ─▶ loop: followers' queues, watchers' signals ─▶ streams
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from onetray.domain.errors import Unavailable
from onetray.engine import Engine
from onetray.http.streams.reader import Batch, Reading

START_TIMEOUT_S = 10.0
"""How long a stream waits for the reader to start, while the database is unavailable."""


class Follower:
    """The queue of a feed stream that has caught up, until the stream has sent the batches."""

    def __init__(self, max_events: int) -> None:
        self._max_events, self._event_count = max_events, 0
        self._queue: list[Batch] = []
        self.signal = asyncio.Event()
        self.lagging = False

    def put(self, batch: Batch) -> None:
        if self.lagging:
            return
        self._event_count += len(batch.events)
        if self._event_count > self._max_events:
            # The stream sends a resync with its cursor, and the client reads the dropped events again.
            self.lagging, self._queue = True, []
        elif self._queue and not batch.events:
            self._queue[-1].cursor = batch.cursor
        else:
            self._queue.append(Batch(batch.events, batch.cursor, batch.frames))
        self.signal.set()

    def reset(self) -> None:
        """Drop the queue: the stream reads these events itself."""
        self._queue, self._event_count, self.lagging = [], 0, False

    def take(self) -> list[Batch]:
        batches, self._queue, self._event_count = self._queue, [], 0
        self.signal.clear()
        return batches


class Watcher:
    """The signal of a stream of one job: something changed."""

    def __init__(self, ids: frozenset[str], key: int | None) -> None:
        self.ids, self.key = ids, key
        self.signal = asyncio.Event()


class Hub:
    """Runs on the event loop, except `close`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: set[Follower] = set()
        self._watchers: dict[str, set[Watcher]] = {}
        self._watched: dict[int, int] = {}
        self._reading: Reading | None = None
        self._stream_count = 0
        self.closing = False

    # For streams.

    @contextmanager
    def following(self, max_events: int) -> Iterator[Follower]:
        """A follower that gets everything past `at()`."""
        with self._reader_running():
            follower = Follower(max_events)
            self._followers.add(follower)
            try:
                yield follower
            finally:
                self._followers.discard(follower)

    @contextmanager
    def watching(self, *ids: str, key: int | None = None) -> Iterator[Watcher]:
        """A watcher that is signalled by events of these jobs and tasks, and by the log and progress of task `key`, or
        of all tasks of the flow `key`."""
        watcher = Watcher(frozenset(ids), key)
        with self._reader_running():
            for id_ in watcher.ids:
                self._watchers.setdefault(id_, set()).add(watcher)
            if key is not None:
                self._watched[key] = self._watched.get(key, 0) + 1
            try:
                yield watcher
            finally:
                self._forget(watcher)

    async def at(self) -> int:
        """The cursor up to which the hub has read. Only for followers and watchers."""
        assert self._reading is not None
        if self._reading.at is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(START_TIMEOUT_S):
                    await self._reading.begun.wait()
        if self._reading.at is None:
            raise Unavailable("the feed cannot be read now: reconnect in a moment")
        return self._reading.at

    def close(self) -> None:
        """Let every stream send its last frame and end. Call it from any thread, any number of times."""
        self.closing = True
        # A local reference: the last stream may reset the attribute on its loop meanwhile.
        reading = self._reading
        if reading is not None:
            reading.end()
            reading.on_loop(self._wake_all)

    def _wake_all(self) -> None:
        if self._reading is not None:
            self._reading.begun.set()
        for follower in self._followers:
            follower.signal.set()
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.signal.set()

    def _forget(self, watcher: Watcher) -> None:
        for id_ in watcher.ids:
            watchers = self._watchers[id_]
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[id_]
        if watcher.key is not None:
            self._watched[watcher.key] -= 1
            if not self._watched[watcher.key]:
                del self._watched[watcher.key]

    @contextmanager
    def _reader_running(self) -> Iterator[None]:
        """Runs the reader while there is any stream."""
        if self.closing:
            raise Unavailable("the server is stopping: reconnect in a moment")
        self._stream_count += 1
        if self._reading is None:
            self._reading = Reading(self._engine, self._deliver, self._followers, self._watched)
        try:
            yield
        finally:
            self._stream_count -= 1
            if not self._stream_count:
                self._reading.end()
                self._reading = None

    def _deliver(self, batch: Batch, updated: list[int]) -> None:
        for follower in self._followers:
            follower.put(batch)
        if not self._watchers:
            return
        for event in batch.events:
            for id_ in (event.job_id, event.entity_id):
                for watcher in self._watchers.get(id_, ()):
                    watcher.signal.set()
        if updated:
            keys = set(updated)
            for watchers in self._watchers.values():
                for watcher in watchers:
                    if watcher.key in keys:
                        watcher.signal.set()
