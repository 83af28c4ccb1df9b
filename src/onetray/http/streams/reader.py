"""The thread that reads the feed for all streams of a process, and checks watched jobs for log lines and progress.

Owns its cursor and its pace. The hub distributes what it reads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from onetray.domain.errors import Unavailable
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.feed import GATHER_S, PAGE, Pace
from onetray.http.json_answers import to_json
from onetray.http.streams.sse import frame

logger = logging.getLogger("onetray.http")

WATCH_INTERVAL_S = 0.05
"""The shortest time between two checks of watched jobs: log lines and progress are not events."""
STOP_CHECK_S = 0.1


@dataclass(slots=True)
class Batch:
    """A page of events, shared by all streams, and the cursor after it."""

    events: list[Event]
    cursor: int
    frames: dict[int, bytes] = field(default_factory=dict)
    """The encoded events, by event id."""


def encode(events: list[Event]) -> dict[int, bytes]:
    """The frames of events, by event id."""
    return {e.id: frame(e.type, to_json(e), e.id) for e in events}


class Reading:
    """The thread and its cursor. It ends with the last stream; the next stream starts a new one."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Batch, list[int]], None],
        followers: Sized,
        watched: Mapping[int, int],
    ) -> None:
        """`deliver` is called on the loop. The hub keeps changing `followers` and `watched`, the keys of jobs."""
        self._engine, self._deliver, self._followers, self._watched = engine, deliver, followers, watched
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._free_slots = threading.Semaphore(2)
        self._last_rows: dict[int, Any] = {}
        self._checked_at = 0.0
        self.begun = asyncio.Event()
        self.at: int | None = None
        threading.Thread(target=self._run, name="onetray-hub", daemon=True).start()

    def end(self) -> None:
        self._stop.set()
        # The thread may be waiting for a commit.
        self._engine.wake.notify()

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended, and its streams with it.
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self) -> None:
        pace = Pace(self._engine.feed, self._stop)
        cursor: int | None = None
        while not pace.over:
            seen, wait_s = self._engine.wake.generation, self._next_check_s()
            try:
                if cursor is None:
                    cursor = self._engine.feed.tail()
                    self.on_loop(self._take, Batch([], cursor), [])
                page = self._engine.redacted.feed.read(cursor, PAGE)
                updated = self._updated_jobs() if wait_s <= 0 else []
                frames = encode(page.events) if self._followers else {}
            except Exception as e:
                if not isinstance(e, Unavailable):
                    logger.exception("the feed could not be read for streams")
                pace.back_off(e)
                continue
            if page.next_cursor != cursor or updated:
                self._send(Batch(page.events, page.next_cursor, frames), updated)
            if wait_s > 0:
                # A short wait, because there may be no further wake-up for lines that are already there.
                self._stop.wait(GATHER_S if self._followers else wait_s)
            else:
                pace.keep(seen, moved=page.next_cursor != cursor, more=len(page.events) == PAGE)
            cursor = page.next_cursor
        self.on_loop(self.begun.set)

    def _next_check_s(self) -> float:
        """Seconds until the next check of watched jobs."""
        return self._checked_at + WATCH_INTERVAL_S - time.monotonic() if self._watched else 0.0

    def _send(self, batch: Batch, updated: list[int]) -> None:
        """Pass a batch to the loop. Waits while the loop has two that it has not taken."""
        while not self._stop.is_set():
            if self._free_slots.acquire(timeout=STOP_CHECK_S):
                self.on_loop(self._receive, batch, updated)
                return

    def _receive(self, batch: Batch, updated: list[int]) -> None:
        self._free_slots.release()
        self._take(batch, updated)

    def _take(self, batch: Batch, updated: list[int]) -> None:
        if self._stop.is_set():
            return
        self.at = batch.cursor
        self._deliver(batch, updated)
        self.begun.set()

    def _updated_jobs(self) -> list[int]:
        """The keys of watched tasks, and of flows with such tasks, that have new log lines or progress."""
        keys = list(self._watched)
        if not keys:
            self._last_rows.clear()
            return []
        self._checked_at = time.monotonic()
        rows = {row.key: row for row in self._engine.store.read("log_and_progress", keys=keys)}
        updated = [key for key, row in rows.items() if self._last_rows.get(key) != row]
        self._last_rows = rows
        return updated
