"""The event feed: every committed event once, in order, from any cursor.

Owns reading and following. The store decides how far it is safe to read (store/feed_barrier.py); listeners.py calls
functions for each event.
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
from onetray.feed.history import events_between, events_of_flows, find_events
from onetray.notify.wake import Wake
from onetray.store.base import Store

logger = logging.getLogger("onetray.feed")

MAX_SCANNED = 10_000
"""How many rows of the log a filtered read scans at most: it stays short even if few match."""
PAGE = 500
MAX_NAME_CHARS = 500
STOP_CHECK_INTERVAL_S = 0.1
MIN_WAIT_S = 0.002
GATHER_S = 0.005
"""The shortest time between two reads of a busy feed: reading after every commit would slow the writers down."""


class Page(NamedTuple):
    """Events, and the cursor for the next read. It equals the requested cursor if there is nothing new."""

    events: list[Event]
    next_cursor: int


class Feed:
    """Reads the event log. Safe to use from any thread."""

    def __init__(self, store: Store, wake: Wake) -> None:
        self.store, self.wake = store, wake

    def read(
        self,
        after: int,
        limit: int = PAGE,
        *,
        namespace: str | None = None,
        types: Sequence[str] | None = None,
        flow: int | None = None,
    ) -> Page:
        """The committed events after a cursor, in order. Repeat until `next_cursor` stays the same.

        With a filter, a page may be short or empty and still advance the cursor: the scanned events did not match.
        `flow` is the key of a flow: then the events of the flow, its stages and its tasks.
        """
        after, limit = cursor_of(after), _limit(limit)
        check_filters(namespace, types)
        if flow is not None:
            return self._of_flow(flow, after, limit, types)
        ns = None
        if namespace is not None and (ns := self.store.names.namespace(namespace)) is None:
            return Page([], max(after, self.store.upto()))
        # A page that is full below a barrier that was passed before needs no new one.
        known = self.store.upto(needed=after + 1)
        page = self._upto(known, after, limit, ns, types)
        if len(page.events) < limit and (upto := self.store.upto()) > known:
            page = self._upto(upto, after, limit, ns, types)
        return page

    def _upto(self, upto: int, after: int, limit: int, ns: int | None, types: Sequence[str] | None) -> Page:
        if upto <= after:
            return Page([], after)
        if ns is None and types is None:
            return _page(*events_between(self.store, after, upto, limit))
        return _page(*find_events(self.store, after, upto, limit, MAX_SCANNED, ns, types))

    def _of_flow(self, flow: int, after: int, limit: int, types: Sequence[str] | None) -> Page:
        # Not only up to `after + limit`: the events of one flow are far apart.
        upto = self.store.upto()
        if upto <= after:
            return Page([], after)
        return _page(*events_of_flows(self.store, [flow], after, limit, upto=upto, types=types))

    def tail(self) -> int:
        """A cursor at the end of the log: all events that are committed from now on come after it."""
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

        While the database is unavailable it waits. To stop it without delay, set `stop`, then call `wake.notify()`.
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
    """How long a reader of the feed waits between reads."""

    def __init__(self, feed: Feed, stop: threading.Event) -> None:
        self._feed, self._stop = feed, stop
        self._wait_s = MIN_WAIT_S
        self._is_unavailable = False

    @property
    def over(self) -> bool:
        return self._stop.is_set() or self._feed.wake.closed

    def keep(self, seen: int, moved: bool, more: bool) -> None:
        """After a read: wait for a wake-up if it was empty, briefly if it was short, not at all if there is more."""
        wake = self._feed.wake
        self._is_unavailable = False
        if moved:
            self._wait_s = MIN_WAIT_S
            if not more:
                self._stop.wait(GATHER_S)
            return
        remaining_s = wake.poll_s
        if self._feed.store.held_up:
            # A writer that rolls back causes no wake-up: poll soon, then less and less often.
            remaining_s = self._next_wait_s()
        while remaining_s > 0 and not self.over and wake.wait(seen, min(remaining_s, STOP_CHECK_INTERVAL_S)) == seen:
            remaining_s -= STOP_CHECK_INTERVAL_S

    def back_off(self, error: Exception) -> None:
        """Wait before the next read of an unavailable database. No wake-up ends this wait."""
        if not self._is_unavailable and not self.over:
            logger.warning("the feed waits for the database: %s", error)
        self._is_unavailable = True
        remaining_s = self._next_wait_s()
        while remaining_s > 0 and not self.over:
            self._stop.wait(min(remaining_s, STOP_CHECK_INTERVAL_S))
            remaining_s -= STOP_CHECK_INTERVAL_S

    def _next_wait_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._feed.wake.poll_s)
        return wait_s


def _page(events: list[Event], next_cursor: int) -> Page:
    return Page([event_of(event) for event in events], next_cursor)


def event_of(row: Event, raw: bool = False) -> Event:
    """An event as it was read, with its payload parsed. Most have none."""
    return row if row.payload is None else replace(row, payload=json_of(row.payload, raw))


def cursor_of(after: object) -> int:
    if type(after) is not int or not 0 <= after < 2**63:
        raise InvalidInput("after must be a cursor: 0, or the next_cursor of an earlier page", field="after")
    return after


def _limit(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidInput("limit must be a whole number from 1 to 10,000", field="limit")
    return limit


def check_filters(namespace: str | None, types: Sequence[str] | None) -> None:
    if namespace is not None:
        text(namespace, "namespace", MAX_NAME_CHARS)
    for name in listed(types or (), "types", 0, 1_000):
        text(name, "types", MAX_NAME_CHARS)


__all__ = ["Feed", "Page", "event_of"]
