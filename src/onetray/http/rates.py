"""How often somebody may come: buckets that fill by themselves.

Owns the counting. It runs on the loop, so nothing is locked.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 10_000


class Bucket:
    """Room for what comes in one second, at least for one."""

    __slots__ = ("_at", "_left", "_now", "_per_s")

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._left, self._at = max(per_s, 1.0), monotonic()

    def take(self) -> float:
        """Zero if there was room; otherwise how many seconds until there is."""
        now = self._now()
        self._left = min(max(self._per_s, 1.0), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._per_s
        self._left -= 1.0
        return 0.0


class Rates:
    """A bucket for each caller. The one that has not come for longest is forgotten: its bucket is full by then."""

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, caller: str) -> float:
        if not self._per_s:
            return 0.0
        bucket = self._buckets.pop(caller, None) or Bucket(self._per_s, self._now)
        self._buckets[caller] = bucket
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return bucket.take()
