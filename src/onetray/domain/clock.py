"""Time as an argument: microseconds since the epoch, from a clock that can be replaced.

Owns how a length of time is written, too. On PostgreSQL the database's own clock is used unless a test brings one of
these.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

SECOND = 1_000_000
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")


def length_s(text: str) -> float | None:
    """A length of time as people write it (90s, 15m, 2h, 30d, 4w) in seconds; None when it is none."""
    found = _LENGTH.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    return seconds if 0 <= seconds <= 4e9 else None


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


def run_at_us(now: int, run_at: int | None, delay_s: float | None) -> int:
    """When a task may run: at once unless it says otherwise."""
    if run_at is not None:
        return run_at
    return now + int((delay_s or 0) * SECOND)
