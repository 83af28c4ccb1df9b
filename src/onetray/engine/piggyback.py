"""Piggyback claims: a worker's next claim runs in the transaction of a submit or a report of the same process.

That saves a transaction, and the claiming thread need not be woken. Owns the list of the claimers of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from onetray.domain.commands import Claim, Command, Submit, Succeed
from onetray.domain.task import Verdict
from onetray.domain.verbs import SubmitMany


class PiggybackClaimer(Protocol):
    def next_claim(self, command: Command) -> PiggybackClaim | None:
        """The claim to run in the transaction of `command`, if there is one. `deliver` always follows."""

    def deliver(self, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        """Receives the claim's verdict, in the thread that ran the transaction."""


@dataclass(slots=True, eq=False)
class PiggybackClaim:
    claimer: PiggybackClaimer
    claim: Claim
    requested_at: float
    """By the monotonic clock."""
    seen: int = 0
    """The wake-up count of the claim's queue at that time: see Wake."""


class Piggyback:
    """The claimers of this process that accept piggyback claims."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimers: tuple[PiggybackClaimer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._claimers)

    def join(self, claimer: PiggybackClaimer) -> None:
        with self._lock:
            self._claimers += (claimer,)

    def leave(self, claimer: PiggybackClaimer) -> None:
        with self._lock:
            self._claimers = tuple(c for c in self._claimers if c is not claimer)

    def take(self, commands: Sequence[Command]) -> PiggybackClaim | None:
        """The claim of a worker to run with these commands, if there is one."""
        first = commands[0] if commands else None
        if isinstance(first, SubmitMany):
            first = first.like
        if isinstance(first, Submit):
            if first.delay_s is not None or first.run_at is not None or first.debounce_s is not None:
                return None
        elif not isinstance(first, Succeed):
            return None
        for claimer in self._claimers:
            piggyback = claimer.next_claim(first)
            if piggyback is not None:
                return piggyback
        return None
