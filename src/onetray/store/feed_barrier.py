"""How far the event log of a PostgreSQL database can be read without missing an event.

Owns the barrier that all readers of a store share. Event ids come from a sequence and become visible in commit order,
not in id order: a reader that simply selects the ids after its cursor misses those of a slower writer.

A barrier is the last id assigned so far, and a transaction id taken after that. A writer has its transaction id before
its first event id, so every writer of an event up to the barrier has a lower transaction id. Once all transactions with
lower ids have ended, these events are committed or never will be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onetray.store.event_log import BLOCK

Fetch = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]

# Each number of the sequence stands for a block of ids.
_LAST = f"SELECT last_value + {BLOCK - 1} FROM onetray.event_id"
_NEWEST = """(SELECT coalesce(max(e.id + e.size - 1), 0) FROM (
    SELECT b.id, b.size FROM onetray.event_batch AS b WHERE b.id <= {last} ORDER BY b.id DESC LIMIT 1) AS e)"""
_LAST_IDS = f"SELECT ({_LAST}), {_NEWEST.format(last=2**62)}"
_STATE = f"pg_snapshot_xmin(pg_current_snapshot())::text, ({_LAST}), {_NEWEST.format(last='%(last)s')}"
# The snapshot is older than the transaction id. If its xmin is that id, no other transaction was open.
_TAKE = f"SELECT pg_current_xact_id()::text, {_STATE}"
_CHECK = f"SELECT {_STATE}"
_HOLDERS = """
    SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = 'onetray.event_id'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

STEP_S = 0.001
LONGEST_STEP_S = 0.01
CHECK_HOLDERS_S = 0.05
"""After this time, check whether the transactions that a barrier waits for write events at all."""
STALE_S = 5.0


@dataclass(slots=True)
class Pending:
    """A barrier that waits for older transactions."""

    last: int
    xid: int
    taken_at: float = field(default_factory=time.monotonic)
    checked_at: float = field(default_factory=time.monotonic)
    holders: frozenset[str] | None = None


class Barrier:
    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._pending: Pending | None = None
        self.passed = 0
        """The largest id of a committed event below which no new event can appear.

        Never an id that is only assigned: after a crash the sequence may assign it again.
        """

    @property
    def pending(self) -> bool:
        """Whether an open transaction keeps events from being read."""
        return self._pending is not None

    def upto(self, wait_s: float) -> int:
        """Advance as far as possible within the time, and return the id. A hanging writer causes only a delay."""
        began, pause = time.monotonic(), STEP_S
        while not self._step(began) and time.monotonic() - began < wait_s:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_STEP_S)
        return self.passed

    def _step(self, began: float) -> bool:
        """Whether everything committed before `began` can be read."""
        with self._lock:
            try:
                return self._advance(began)
            except BaseException:
                # The server may have crashed and assigned ids again: an older barrier is invalid.
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
        return self._pass(pending, *position) and pending.taken_at >= began

    def _begin(self) -> bool:
        """Take a barrier if there are events after the last one."""
        self._pending = None
        ((last, newest),) = self._fetch(_LAST_IDS, {})
        if newest <= self.passed:
            # Fewer events than before: the database was restored from a backup.
            self.passed = newest
            return True
        # In a separate statement: the transaction id must be taken after the last event id was read.
        ((xid, *position),) = self._fetch(_TAKE, {"last": last})
        self._pending = Pending(last, int(xid))
        return self._pass(self._pending, *position)

    def _pass(self, pending: Pending, xmin: str, last: int, newest: int) -> bool:
        """Pass the barrier unless an older transaction may still write events. Returns whether it was passed."""
        if last < pending.last:
            # Ids are assigned again after a crash: this barrier is invalid.
            self._pending = None
            return False
        pending.checked_at = time.monotonic()
        if int(xmin) < pending.xid:
            if not self._no_writer_left(pending):
                return False
            ((_, _, newest),) = self._fetch(_CHECK, {"last": pending.last})
        self._pending = None
        self.passed = max(self.passed, newest)
        return True

    def _no_writer_left(self, pending: Pending) -> bool:
        """Whether none of the open transactions writes events.

        All databases of a server share transaction ids: a long transaction of another program must not stop the feed.
        A transaction with an event id holds a lock on the sequence until it ends.
        """
        if time.monotonic() - pending.taken_at < CHECK_HOLDERS_S:
            return False
        holders = frozenset(v for (v,) in self._fetch(_HOLDERS, {}))
        if pending.holders is None:
            pending.holders = holders
        return not pending.holders & holders
