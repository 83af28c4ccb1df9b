"""Time as an argument: microseconds since the epoch, from a clock that can be replaced.

Owns nothing else. On PostgreSQL the database's own clock is used unless a test brings one of these.
"""

from __future__ import annotations

import time
from typing import Protocol

SECOND = 1_000_000


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: int = 1_700_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += int(seconds * SECOND)
