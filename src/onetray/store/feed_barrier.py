"""How far the event log of a PostgreSQL database can be read without leaving anything out.

Owns the one barrier that all readers of a store share. Event ids come from a sequence and become visible in the order
of the commits, not of the ids: a reader that simply asks for ids past its cursor skips those of a slower writer.

A barrier is the last id that was handed out, and a transaction number taken after that. A writer has its number before
its first event id, so every writer with an id up to the barrier's has a lower number: once all lower numbers have
ended, those ids are committed or never will be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Fetch = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]

_LOOK = "SELECT last_value, (SELECT coalesce(max(id), 0) FROM onetray.event) FROM onetray.event_id"
_STATE = """pg_snapshot_xmin(pg_current_snapshot())::text, (SELECT last_value FROM onetray.event_id),
    (SELECT coalesce(max(id), 0) FROM onetray.event WHERE id <= %(last)s)"""
# The snapshot is older than the number, by nothing if its xmin is the number: then nobody else was at work.
_TAKE = f"SELECT pg_current_xact_id()::text, {_STATE}"
_CHECK = f"SELECT {_STATE}"
_HOLDERS = """
    SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = 'onetray.event_id'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

STEP_S = 0.001
LONGEST_STEP_S = 0.01
LOOK_CLOSER_S = 0.05
"""When a barrier holds for so long, it is asked whether those it waits for write events at all."""
STALE_S = 5.0


@dataclass(slots=True)
class Pending:
    """A barrier that has not passed yet."""

    last: int
    number: int
    taken_at: float = field(default_factory=time.monotonic)
    checked_at: float = field(default_factory=time.monotonic)
    holders: frozenset[str] | None = None


class Barrier:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._pending: Pending | None = None
        self.passed = 0
        """The greatest id of a committed event up to which nothing can appear any more.

        Never an id that was only handed out: after a crash the sequence may hand such a number out again.
        """

    @property
    def pending(self) -> bool:
        """Whether there are events that a writer, still at work, keeps from being read."""
        return self._pending is not None

    def upto(self, wait_s: float) -> int:
        """Move on as far as can be within the time, and say how far that is. A writer that hangs delays, no more."""
        began, pause = time.monotonic(), STEP_S
        while not self._step(began) and time.monotonic() - began < wait_s:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_STEP_S)
        return self.passed

    def _step(self, began: float) -> bool:
        """True when everything that was committed before `began` can be read."""
        with self._lock:
            try:
                return self._advance(began)
            except BaseException:
                # The server may have crashed and handed ids out again: a barrier from before says nothing.
                self._pending = None
                raise

    def _advance(self, began: float) -> bool:
        now = time.monotonic()
        pending = self._pending
        if pending is None or now - pending.checked_at > STALE_S:
            return self._begin()
        if now - pending.checked_at < STEP_S:
            return False
        (position,) = self._fetch(_CHECK, {"last": pending.last})
        return self._judge(pending, *position) and pending.taken_at >= began

    def _begin(self) -> bool:
        """Take a barrier if there is anything past the last one."""
        self._pending = None
        ((last, newest),) = self._fetch(_LOOK, {})
        if newest <= self.passed:
            # Less than was there is another database: one restored from a backup.
            self.passed = newest
            return True
        # A statement of its own: the number must be taken after the last id was read.
        ((number, *position),) = self._fetch(_TAKE, {"last": last})
        self._pending = Pending(last, int(number))
        return self._judge(self._pending, *position)

    def _judge(self, pending: Pending, xmin: str, last: int, newest: int) -> bool:
        if last < pending.last:
            # Ids are handed out again, after a crash: this barrier says nothing about them.
            self._pending = None
            return False
        pending.checked_at = time.monotonic()
        if int(xmin) < pending.number:
            if not self._only_strangers(pending):
                return False
            ((_, _, newest),) = self._fetch(_CHECK, {"last": pending.last})
        self._pending = None
        self.passed = max(self.passed, newest)
        return True

    def _only_strangers(self, pending: Pending) -> bool:
        """Whether the transactions that are still open have nothing to do with events.

        Numbers are shared by all databases of a server: a long transaction of somebody else must not stop the feed.
        Whoever has an event id holds a lock on the sequence until it has ended.
        """
        if time.monotonic() - pending.taken_at < LOOK_CLOSER_S:
            return False
        holders = frozenset(v for (v,) in self._fetch(_HOLDERS, {}))
        if pending.holders is None:
            pending.holders = holders
        return not pending.holders & holders
