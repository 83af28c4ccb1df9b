"""Call functions for every committed event.

Owns one thread that serves all listeners of an engine, one event at a time: a slow listener delays the others, one that
raises does not affect them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import groupby

from onetray.domain.errors import Unavailable
from onetray.domain.task import Event
from onetray.feed import PAGE, Feed, Pace, check_filters, cursor_of

logger = logging.getLogger("onetray.feed")

Listener = Callable[[Event], object]


class Subscription:
    """A listener and its cursor. Close it to stop the calls."""

    def __init__(self, listener: Listener, cursor: int, namespace: str | None, on_close: Callable[[], None]) -> None:
        self.cursor, self.namespace = cursor, namespace
        self.closed = False
        self._listener, self._on_close = listener, on_close

    def close(self) -> None:
        """Deliver no more events. Does not wait for a call in progress."""
        self.closed = True
        self._on_close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def deliver(self, event: Event) -> None:
        if self.closed:
            return
        # Before the call: a listener that raises does not get the event again.
        self.cursor = event.id
        try:
            self._listener(event)
        except BaseException:
            # SystemExit, too: it would end the thread that serves all listeners.
            logger.exception("a listener failed at event %d (%s) of %s", event.id, event.type, event.entity_id)


class Listeners:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, listener: Listener, after: int | None, namespace: str | None) -> Subscription:
        check_filters(namespace, None)
        cursor = self._feed.tail() if after is None else cursor_of(after)
        subscription = Subscription(listener, cursor, namespace, self._remove_closed)
        with self._lock:
            if self._stop.is_set():
                raise Unavailable("the engine is closed")
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onetray-feed", daemon=True)
                self._thread.start()
        # The thread may be waiting at other cursors.
        self._feed.wake.notify()
        return subscription

    def close(self) -> None:
        self._stop.set()
        self._feed.wake.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _remove_closed(self) -> None:
        with self._lock:
            self._subscriptions = [s for s in self._subscriptions if not s.closed]
        self._feed.wake.notify()

    def _run(self) -> None:
        pace = Pace(self._feed, self._stop)
        while not pace.over:
            seen = self._feed.wake.generation
            with self._lock:
                if not self._subscriptions:
                    self._thread = None
                    return
                groups = sorted(self._subscriptions, key=_position)
            try:
                counts = [self._serve(list(g)) for _, g in groupby(groups, key=_position)]
            except Unavailable as e:
                pace.back_off(e)
            except Exception as e:
                logger.exception("the feed could not be read")
                pace.back_off(e)
            else:
                pace.keep(seen, moved=any(s is not None for s in counts), more=any(s in (0, PAGE) for s in counts))

    def _serve(self, group: list[Subscription]) -> int | None:
        """Deliver one page to all listeners at the same cursor, so that one that is behind does not delay the others.

        Returns the number of events; None if the cursor did not advance.
        """
        cursor, namespace = group[0].cursor, group[0].namespace
        page = self._feed.read(cursor, namespace=namespace)
        for event in page.events:
            for subscription in group:
                if self._stop.is_set():
                    return None
                subscription.deliver(event)
        for subscription in group:
            subscription.cursor = page.next_cursor
        return None if page.next_cursor == cursor else len(page.events)


def _position(s: Subscription) -> tuple[int, bool, str]:
    return s.cursor, s.namespace is None, s.namespace or ""


__all__ = ["Listener", "Listeners", "Subscription"]
