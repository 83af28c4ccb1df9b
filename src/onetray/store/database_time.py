"""A SQLite database's time: the process's clock, but never before the newest time in the database.

Owns what a process does whose clock is behind, or was set back: its time advances from the newest in the database, a
little slower, until its clock has caught up. See docs/adr/0007-time-on-sqlite-never-runs-back.md.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from onetray.domain.clock import SECOND, Clock, SystemClock

logger = logging.getLogger("onetray.store")


class DatabaseTime:
    def __init__(self, clock: Clock, skew_s: float) -> None:
        self._clock, self._skew_us = clock, int(skew_s * SECOND)
        # Elapsed time must not depend on a clock that can be set.
        self._passed = _monotonic if isinstance(clock, SystemClock) else clock.now
        self._newest = 0, self._passed()
        """The newest time read from the database, and when it was read."""
        self._warned = False

    def now(self) -> int:
        return max(self._clock.now(), self._from_newest())

    def observe(self, newest: int) -> None:
        """Report the newest time that was just read from the database."""
        if newest > self._from_newest():
            self._newest = newest, self._passed()
        behind = newest - self._clock.now()
        if behind <= 0:
            self._warned = False
        elif behind > self._skew_us and not self._warned:
            self._warned = True
            logger.warning(
                "this process's clock shows %s, %d s behind the newest time in the database, %s: using the database's "
                "time, a tenth slower than real time, until the clock has caught up. Synchronize the clock by NTP",
                _iso(newest - behind), behind // SECOND, _iso(newest),
            )  # fmt: skip

    def _from_newest(self) -> int:
        """A lower bound of the database's time."""
        newest, seen_at = self._newest
        passed = self._passed() - seen_at
        if passed < 0:
            # Only a test's clock can be set back.
            self._newest, passed = (newest, seen_at + passed), 0
        return newest + passed * 9 // 10


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).isoformat()
