"""Clocks, which tests can replace, and durations as text. Times are microseconds since the epoch.

On PostgreSQL the engine uses the database's clock unless a test passes one of these.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Protocol

SECOND = 1_000_000
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LAST = 253_402_300_799 * SECOND
"""The last second that Python can print."""
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")


def length_s(text: str) -> float | None:
    """The seconds of a duration such as 90s, 15m, 2h, 30d or 4w; None if the text is not one."""
    match = _LENGTH.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else -1.0
    return seconds if 0 <= seconds <= 4e9 else None


def duration(us: int) -> str:
    """A duration in its largest suitable unit."""
    s = us // SECOND
    if s < 120:
        return f"{s} s"
    if s < 7_200:
        return f"{s // 60} min"
    return f"{s // 3_600} h" if s < 172_800 else f"{s // 86_400} days"


def utc_text(at: int) -> str:
    """A time in UTC, to the second: "2026-11-16 03:20:11 UTC"."""
    if at > _LAST:
        return "a time after the year 9999"
    return f"{datetime.fromtimestamp(at // SECOND, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> int:
        return time.time_ns() // 1000


class VirtualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: int = 1_700_000_000 * SECOND) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += int(seconds * SECOND)


def run_at_us(now: int, run_at: int | None, delay_s: float | None) -> int:
    """The earliest time at which a task may run: now, unless run_at or delay_s is set."""
    if run_at is not None:
        return run_at
    return now + int((delay_s or 0) * SECOND)
