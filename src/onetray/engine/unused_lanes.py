"""Delete lanes that nothing uses any more: a key with ever new values would leave a million of them.

Works as unused_kinds.py: a pass reads the lanes of all open tasks in short steps; a lane without one is retired, and
deleted days later with the counters of its values. A submit takes a retired lane back (store/lanes.py).
"""

from __future__ import annotations

from onetray.domain.clock import SECOND
from onetray.engine.limit_rules import unlimit_queues
from onetray.store.base import Store, Tx

MANY = 1_000
"""Fewer lanes than these cost nothing: they stay."""
PASS_S = 3600
"""A pass begins at most this often."""
PASS_LANES = 100_000
"""How many lanes one pass checks at most."""
SPAN = 20_000
"""How many tasks a step reads."""
BATCH = 1_000
"""How many lanes a step retires or deletes."""
KEEP_RETIRED_S = 7 * 86_400


class UnusedLanes:
    """One pass after the other. `step` reads; `remove` writes what a whole pass has found."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unused: set[int] = set()
        self._is_reading = False
        self._after, self._last_lane, self._next_pass_at = 0, 0, 0

    @property
    def found(self) -> bool:
        """Whether a pass has read everything, and has lanes to retire or to delete."""
        return not self._is_reading and bool(self._unused)

    def step(self, ns: int | None) -> bool:
        """Read a part. Returns False if there is nothing to do before the next pass."""
        if self.found:
            return True
        if not self._is_reading and not self._begin(ns):
            return False
        ((upto, _),) = self._store.read("next_tasks", after=self._after, span=SPAN)
        if upto is None:
            self._is_reading = False
            return self.found
        self._unused -= {lane for (lane,) in self._store.read("lanes_of_tasks", after=self._after, upto=upto)}
        self._after = upto
        return True

    def _begin(self, ns: int | None) -> bool:
        now = self._store.now()
        if now < self._next_pass_at:
            return False
        self._next_pass_at = now + PASS_S * SECOND
        lanes = [key for (key,) in self._store.read("idle_lanes", after=self._last_lane, ns=ns, limit=PASS_LANES)]
        is_first, self._last_lane = not self._last_lane, lanes[-1] if len(lanes) == PASS_LANES else 0
        if not lanes or (is_first and len(lanes) < MANY):
            return False
        self._unused, self._is_reading, self._after = set(lanes), True, 0
        return True

    def remove(self, tx: Tx) -> None:
        """Delete unused lanes that were retired long ago, and retire the others."""
        lanes = sorted(self._unused)[:BATCH]
        gone = tx.query("delete_lanes", keys=lanes, before=tx.now - KEEP_RETIRED_S * SECOND)
        tx.query("retire_lanes", keys=lanes, at=tx.now)
        if gone:
            kinds = sorted({kind for _, kind in gone})
            idle = [key for (key,) in tx.query("lock_idle_buckets", kinds=kinds, now=tx.now, limit=BATCH)]
            if idle:
                tx.query("delete_idle_buckets", keys=idle, now=tx.now)
            for ns in sorted({ns for ns, _ in gone}):
                unlimit_queues(tx, ns)
        self._unused.difference_update(lanes)
