"""Retry a failed transaction, if it wrote nothing or if repeating it is harmless."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from onetray.domain.errors import DatabaseMoved, OutcomeUnknown, Unavailable

T = TypeVar("T")
ROLLED_BACK = ("40P01", "40001")
"""A deadlock or a serialization failure: the transaction may succeed the next time."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.01, 1.0


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
