"""Retry a failed transaction, if it wrote nothing or if repeating it is harmless.

Also owns the log lines about an outage, which several threads of a process notice: one warning of each while the
database is away, and one line when it is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from onetray.domain.errors import DatabaseMoved, OutcomeUnknown, Unavailable

logger = logging.getLogger("onetray.database")

T = TypeVar("T")
ROLLED_BACK = ("40P01", "40001")
"""A deadlock or a serialization failure: the transaction may succeed the next time."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.01, 1.0
AFTERMATH_S = 5.0
"""For so long after an outage, a call that fails begins no other one."""


class MayBeRepeated(OutcomeUnknown):
    """It is unknown whether this was written, but repeating the call is harmless."""


def retry_transaction(work: Callable[[], T], patience_s: float, is_closed: Callable[[], bool] = lambda: False) -> T:
    """Run a transaction until it has certainly taken effect.

    After `patience_s`, raises the last error, or the one that left the outcome unknown if there was one.
    """
    until, wait = time.monotonic() + patience_s, FIRST_WAIT_S
    unknown: MayBeRepeated | None = None
    while True:
        try:
            return work()
        except MayBeRepeated as e:
            error: Exception = e
            unknown = e
        except (OutcomeUnknown, DatabaseMoved):
            # A moved file may never come back: raise at once.
            raise
        except Unavailable as e:
            error = e
        except Exception as e:
            if getattr(e, "sqlstate", None) not in ROLLED_BACK:
                raise
            error = e
        if time.monotonic() + wait > until or is_closed():
            raise unknown or error
        time.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT_S)


class Outage:
    """The outages of a database, as the threads of a process notice them. `answered` is cheap while there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_at: float | None = None
        self._ended_at = float("-inf")
        self._waiting: set[str] = set()

    def failed(self, waiting: str, error: Exception, tried_at: float) -> None:
        """A call that began at `tried_at` (monotonic) was not answered. `waiting` says who waits for the database."""
        with self._lock:
            # Another thread has had an answer since; or this is a connection that the outage has broken.
            is_known = waiting in self._waiting or tried_at < self._ended_at + AFTERMATH_S
            if not is_known:
                self._waiting.add(waiting)
                self._began_at = self._began_at or tried_at
        logger.log(logging.DEBUG if is_known else logging.WARNING, "%s for the database: %s", waiting, error)

    def began(self, at: float) -> None:
        """The database has been away since then (monotonic), and that is in the log already."""
        with self._lock:
            if at >= self._ended_at:
                self._began_at = self._began_at or at

    def answered(self) -> None:
        """The database has answered a call."""
        if self._began_at is None:
            return
        with self._lock:
            began_at, self._began_at, self._ended_at = self._began_at, None, time.monotonic()
            self._waiting.clear()
        if began_at is not None:
            logger.info("the database is back after %.1f s", self._ended_at - began_at)
