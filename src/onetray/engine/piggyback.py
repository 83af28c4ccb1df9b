"""Claims that ride along in somebody's transaction.

Owns who wants to ride: the workers of this process. Whoever submits to a worker's queue, or reports a success, carries
out the worker's next claim in the transaction of his own, and hands it what it gave. That spares a transaction, and
the thread that claims need not be woken.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onetray.domain.commands import Claim, Command, Submit, Succeed
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany


class ClaimPassenger(Protocol):
    def board(self, beside: Command) -> PiggybackClaim | None:
        """The claim to take along in the transaction of this command. What it gave is told for certain."""

    def arrive(self, ride: PiggybackClaim, verdict: Verdict) -> None:
        """What the claim gave, told in the thread of whoever took it along."""


@dataclass(slots=True, eq=False)
class PiggybackClaim:
    rider: ClaimPassenger
    claim: Claim
    asked_at: float
    """By the monotonic clock."""
    seen: int = 0
    """How much work in its queue had been told of by then: see Wake."""


class Piggyback:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._riders: tuple[ClaimPassenger, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._riders)

    def join(self, rider: ClaimPassenger) -> None:
        with self._lock:
            self._riders += (rider,)

    def leave(self, rider: ClaimPassenger) -> None:
        with self._lock:
            self._riders = tuple(r for r in self._riders if r is not rider)

    def take(self, commands: Sequence[Command]) -> PiggybackClaim | None:
        """A claim to carry out with these commands, if a worker has one."""
        first = commands[0] if commands else None
        if isinstance(first, SubmitMany):
            first = first.like
        if isinstance(first, Submit):
            if first.delay_s is not None or first.run_at is not None:
                return None
        elif not isinstance(first, Succeed):
            return None
        for rider in self._riders:
            ride = rider.board(first)
            if ride is not None:
                return ride
        return None
