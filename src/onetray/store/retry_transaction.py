"""When a transaction that failed is run again.

Owns that decision: when nothing of it was written, or when that cannot be known but the same again does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from onetray.domain.errors import DatabaseMoved, OutcomeUnknown, Unavailable

T = TypeVar("T")
LOST_TO_OTHERS = ("40P01", "40001")
"""A deadlock, or a conflict with another transaction: it was rolled back, and may pass the next time."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.01, 1.0


class MayBeRepeated(OutcomeUnknown):
    """It is not known whether this was written. Call again: the same twice does no harm."""


def retry_transaction(work: Callable[[], T], patience_s: float, given_up: Callable[[], bool] = lambda: False) -> T:
    """Run a transaction until it is known to have taken effect.

    After the time that is given, the error that it failed with is raised; the one that leaves the outcome open, if one
    of the runs did.
    """
    until, wait = time.monotonic() + patience_s, FIRST_WAIT_S
    unsure: MayBeRepeated | None = None
    while True:
        try:
            return work()
        except MayBeRepeated as e:
            error: Exception = e
            unsure = e
        except (OutcomeUnknown, DatabaseMoved):
            # A file that somebody has moved may never come back: the caller is told at once.
            raise
        except Unavailable as e:
            error = e
        except Exception as e:
            if getattr(e, "sqlstate", None) not in LOST_TO_OTHERS:
                raise
            error = e
        if time.monotonic() + wait > until or given_up():
            raise unsure or error
        time.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT_S)
