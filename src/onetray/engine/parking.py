"""Claims that wait for somebody's transaction to ride along in.

Owns what a worker has left here: its next claim. Whoever submits to its queue in this process, or reports a success,
carries it out in the transaction of his own, and so spares the worker one. A claim that nobody has taken is withdrawn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from onetray.bulk import SubmitMany
from onetray.commands import Claim, Command, Submit, Succeed
from onetray.config import Limits
from onetray.model import Verdict


class Parked:
    """One claim, and its answer once somebody has carried it out."""

    __slots__ = ("_done", "asked_at", "claim", "verdict")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.asked_at = 0.0
        """When it was taken along, by the monotonic clock."""
        self.verdict: Verdict | None = None
        self._done = threading.Event()

    def answer(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the answer; says whether it is there."""
        return self._done.wait(timeout_s)


class Parking:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._claims: list[Parked] = []

    def __bool__(self) -> bool:
        return bool(self._claims)

    def park(self, claim: Claim) -> Parked:
        claim.check(self._limits)
        parked = Parked(claim)
        with self._lock:
            self._claims.append(parked)
        return parked

    def withdraw(self, parked: Parked) -> bool:
        """Whether it was still there. If not, somebody carries it out, and it will be answered."""
        with self._lock:
            if parked in self._claims:
                self._claims.remove(parked)
                return True
            return False

    def take(self, commands: Sequence[Command]) -> Parked | None:
        """A claim that may find something with these commands: one of their queue, or any beside a success."""
        first = commands[0] if commands else None
        with self._lock:
            for i, parked in enumerate(self._claims):
                if _suits(parked.claim, first):
                    parked.asked_at = time.monotonic()
                    return self._claims.pop(i)
        return None


def _suits(claim: Claim, first: Command | None) -> bool:
    if isinstance(first, Succeed):
        return True
    submit = first.like if isinstance(first, SubmitMany) else first
    return (
        isinstance(submit, Submit)
        and submit.queue == claim.queue
        and submit.namespace == claim.namespace
        and submit.delay_s is None
        and submit.run_at is None
    )
