"""The thread that reads the feed for all streams of a process, and looks what watched tasks have said beside it.

Owns its place in the feed and its pace. Who gets what it has read is the hub's to say.
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

LOOK_EVERY_S = 0.05
"""How often it is looked at most whether watched tasks have logged something: lines are no events."""
STOP_EVERY_S = 0.1


@dataclass(slots=True)
class Batch:
    """Events as they were read once for all, and the cursor after them."""

    events: list[Event]
    cursor: int
    frames: dict[int, bytes] = field(default_factory=dict)
    """Those that are written for the wire already, by the events' ids."""


def written(events: list[Event]) -> dict[int, bytes]:
    """Events for the wire, by their ids."""
    return {e.id: frame(e.type, to_json(e), e.id) for e in events}


class Reading:
    """The thread, and where it is. Another one begins when all streams had ended."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Batch, list[int]], None],
        followers: Sized,
        watched: Mapping[int, int],
    ) -> None:
        """`deliver` is called on the loop. The others are the hub's own: whether anybody follows, who is watched."""
        self._engine, self._deliver, self._followers, self._watched = engine, deliver, followers, watched
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._room = threading.Semaphore(2)
        self._said: dict[int, Any] = {}
        self._looked_at = 0.0
        self.begun = asyncio.Event()
        self.at: int | None = None
        threading.Thread(target=self._run, name="onetray-hub", daemon=True).start()

    def end(self) -> None:
        self._stop.set()
        # It may be waiting for news.
        self._engine.wake.notify()

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended, and its streams with it.
            self._loop.call_soon_threadsafe(call, *args)

    def _run(self) -> None:
        pace = Pace(self._engine.feed, self._stop)
        cursor: int | None = None
        while not pace.over:
            seen, owed_s = self._engine.wake.generation, self._look_owed_s()
            try:
                if cursor is None:
                    cursor = self._engine.feed.tail()
                    self.on_loop(self._take, Batch([], cursor), [])
                page = self._engine.redacted.feed.read(cursor, PAGE)
                spoke = self._who_spoke() if owed_s <= 0 else []
                frames = written(page.events) if self._followers else {}
            except Exception as e:
                if not isinstance(e, Unavailable):
                    logger.exception("the feed could not be read for streams")
                pace.back_off(e)
                continue
            if page.next_cursor != cursor or spoke:
                self._hand_over(Batch(page.events, page.next_cursor, frames), spoke)
            if owed_s > 0:
                # Not for long: nobody rings again for what was said already.
                self._stop.wait(GATHER_S if self._followers else owed_s)
            else:
                pace.keep(seen, moved=page.next_cursor != cursor, more=len(page.events) == PAGE)
            cursor = page.next_cursor
        self.on_loop(self.begun.set)

    def _look_owed_s(self) -> float:
        """How long to wait before the next look at watched tasks."""
        return self._looked_at + LOOK_EVERY_S - time.monotonic() if self._watched else 0.0

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

    def _who_spoke(self) -> list[int]:
        """Those of the watched tasks that have logged something, or said how far they are: that is no event."""
        keys = list(self._watched)
        if not keys:
            self._said.clear()
            return []
        self._looked_at = time.monotonic()
        rows = {row.key: row for row in self._engine.store.read("said_beside", keys=keys)}
        spoke = [key for key, row in rows.items() if self._said.get(key) != row]
        self._said = rows
        return spoke
