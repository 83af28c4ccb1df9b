"""The time that a SQLite database goes by: the clock of the process, and never before what is written there.

Owns what a process does whose clock is behind the others', or was set back: it goes on from the newest time in the
database, a little slower, until its own clock has caught up. See docs/adr/0007-time-on-sqlite-never-runs-back.md.
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
        # How much time has passed must not depend on a clock that somebody sets.
        self._passed = _monotonic if isinstance(clock, SystemClock) else clock.now
        self._newest = 0, self._passed()
        """The newest time that was seen in the database, and when."""
        self._warned = False

    def now(self) -> int:
        return max(self._clock.now(), self._from_newest())

    def saw(self, newest: int) -> None:
        """Note the newest time in the database, as it was read just now."""
        if newest > self._from_newest():
            self._newest = newest, self._passed()
        behind = newest - self._clock.now()
        if behind <= 0:
            self._warned = False
        elif behind > self._skew_us and not self._warned:
            self._warned = True
            logger.warning(
                "the clock of this process says %s and is %d s behind the newest time in the database, %s: the "
                "database's time is used, which goes a tenth slower until the clock has caught up. Set it by NTP",
                _iso(newest - behind), behind // SECOND, _iso(newest),
            )  # fmt: skip

    def _from_newest(self) -> int:
        """What time it is at least."""
        newest, seen_at = self._newest
        passed = self._passed() - seen_at
        if passed < 0:
            # A test's clock that was set back.
            self._newest, passed = (newest, seen_at + passed), 0
        return newest + passed * 9 // 10


def _monotonic() -> int:
    return time.monotonic_ns() // 1000


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).isoformat()
