"""The event feed: every committed event, in order, from any cursor, once.

Owns reading and following. How far it is safe to read is the store's to know (store/feed_barrier.py); who is called for
each event is in listeners.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from onetray.domain.checks import listed, text
from onetray.domain.errors import InvalidInput, Unavailable
from onetray.domain.task import Event, json_of
from onetray.notify.wake import Wake
from onetray.store.base import Store

logger = logging.getLogger("onetray.feed")

SCAN = 10_000
"""How many events a filtered read looks at: it stays short when nearly nothing matches."""
PAGE = 500
NAME_CHARS = 500
STOP_EVERY_S = 0.1
SOON_S = 0.002
GATHER_S = 0.005
"""A busy stream is read at most this often: reading after every commit costs the writers more than it gains."""


class Page(NamedTuple):
    """Some events, and the cursor to read on from. It equals the cursor asked for when there is nothing new."""

    events: list[Event]
    next_cursor: int


class Feed:
    """Reads the event log. Safe to use from any thread."""

    def __init__(self, store: Store, wake: Wake) -> None:
        self.store, self.wake = store, wake

    def read(
        self, after: int, limit: int = PAGE, *, namespace: str | None = None, types: Sequence[str] | None = None
    ) -> Page:
        """The committed events past a cursor, in order. Read on until `next_cursor` stays the same.

        A page may be short, or empty, and still move the cursor on: what was looked at did not match.
        """
        after, limit = cursor_of(after), _limit(limit)
        check_filters(namespace, types)
        upto = self.store.upto(needed=after + limit)
        if upto <= after:
            return Page([], after)
        filtered = namespace is not None or types is not None
        window = {"after": after, "upto": upto, "scan": max(limit, SCAN) if filtered else limit}
        rows = self.store.read(
            "events_after",
            **window,
            limit=limit,
            namespace=namespace,
            every=int(types is None),
            types=list(types or ()),
        )
        events = [event_of(r) for r in rows]
        if len(events) == limit:
            return Page(events, events[-1].id)
        return Page(events, self._end_of(window) if filtered else upto)

    def _end_of(self, window: dict[str, int]) -> int:
        """The last event that was looked at. Its successors may have been out of the window."""
        ((last,),) = self.store.read("end_of_window", **window)
        return window["upto"] if last is None else int(last)

    def tail(self) -> int:
        """A cursor at the end of the log: whatever is committed from now on lies past it."""
        return self.store.tail()

    def follow(
        self,
        after: int | None = None,
        *,
        stop: threading.Event | None = None,
        namespace: str | None = None,
        types: Sequence[str] | None = None,
        limit: int = PAGE,
    ) -> Iterator[Event]:
        """Yield events as they are committed, from a cursor or from now on, until stopped or the engine is closed.

        It outlasts a database that is away. To stop it without delay, set `stop`, then call `wake.notify()`.
        """
        cursor = self.tail() if after is None else cursor_of(after)
        return self._follow(cursor, stop or threading.Event(), namespace, types, _limit(limit))

    def _follow(
        self, cursor: int, stop: threading.Event, namespace: str | None, types: Sequence[str] | None, limit: int
    ) -> Iterator[Event]:
        pace = Pace(self, stop)
        while not pace.over:
            seen = self.wake.generation
            try:
                page = self.read(cursor, limit, namespace=namespace, types=types)
            except Unavailable as e:
                pace.back_off(e)
                continue
            for event in page.events:
                if stop.is_set():
                    return
                yield event
            pace.keep(seen, moved=page.next_cursor != cursor, more=len(page.events) in (0, limit))
            cursor = page.next_cursor


class Pace:
    """How long a reader waits that found nothing: for a wake-up, and never for long."""

    def __init__(self, feed: Feed, stop: threading.Event) -> None:
        self._feed, self._stop = feed, stop
        self._soon = SOON_S
        self._away = False

    @property
    def over(self) -> bool:
        return self._stop.is_set() or self._feed.wake.closed

    def keep(self, seen: int, moved: bool, more: bool) -> None:
        """Wait when nothing was found; go on at once while there is more; else let some events gather."""
        wake = self._feed.wake
        self._away = False
        if moved:
            self._soon = SOON_S
            if not more:
                self._stop.wait(GATHER_S)
            return
        left = wake.poll_s
        if self._feed.store.held_up:
            # Nobody rings when a writer gives up: look again soon, then less and less often.
            left = self._longer()
        while left > 0 and not self.over and wake.wait(seen, min(left, STOP_EVERY_S)) == seen:
            left -= STOP_EVERY_S

    def back_off(self, why: Exception) -> None:
        """Wait for a database that is away. A wake-up does not bring it back."""
        if not self._away and not self.over:
            logger.warning("the feed waits for the database: %s", why)
        self._away = True
        left = self._longer()
        while left > 0 and not self.over:
            self._stop.wait(min(left, STOP_EVERY_S))
            left -= STOP_EVERY_S

    def _longer(self) -> float:
        soon, self._soon = self._soon, min(2 * self._soon, self._feed.wake.poll_s)
        return soon


def event_of(row: Event, raw: bool = False) -> Event:
    """An event as it was read, with its payload parsed. Most have none."""
    return row if row.payload is None else replace(row, payload=json_of(row.payload, raw))


def cursor_of(after: object) -> int:
    if type(after) is not int or not 0 <= after < 2**63:
        raise InvalidInput("after must be a cursor: 0, or a number that the feed has given", field="after")
    return after


def _limit(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidInput("limit must be a whole number from 1 to 10,000", field="limit")
    return limit


def check_filters(namespace: str | None, types: Sequence[str] | None) -> None:
    if namespace is not None:
        text(namespace, "namespace", NAME_CHARS)
    for name in listed(types or (), "types", 0, 1_000):
        text(name, "types", NAME_CHARS)


__all__ = ["Feed", "Page", "event_of"]
