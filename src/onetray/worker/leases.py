"""The leases that this worker holds, their attempts, and until when each lease is certain to hold.

A lease is timed from before the claim was sent, so that it never lasts longer here than in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onetray.worker.attempt import Attempt


@dataclass(eq=False, slots=True)
class Lease:
    """The lease of one claim, with the attempts that are still held under it."""

    key: int
    queue: str
    length_s: float
    valid_until: float = 0.0
    beat_at: float = 0.0
    """When to renew it."""
    attempts: set[Attempt] = field(default_factory=set)

    def renewed(self, sent_at: float) -> None:
        """Count from when the claim or the heartbeat was sent. It is renewed when half of it has passed."""
        self.valid_until, self.beat_at = sent_at + self.length_s, sent_at + self.length_s / 2


class HeldLeases:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._lost: set[Attempt] = set()
        """Lost while their handlers still run: under no lease, but still counted against the limit of their queue."""

    def __len__(self) -> int:
        with self._lock:
            return sum(len(lease.attempts) for lease in self._leases.values())

    def add(self, attempts: Iterable[Attempt], sent_at: float) -> None:
        """Record the attempts of a claim that was sent at `sent_at`."""
        with self._lock:
            for attempt in attempts:
                a = attempt.assignment
                lease = self._leases.get(a.lease)
                if lease is None:
                    lease = self._leases[a.lease] = Lease(a.lease, a.queue, a.lease_s)
                    lease.renewed(sent_at)
                lease.attempts.add(attempt)
                attempt.lease = lease

    def drop(self, attempts: Collection[Attempt]) -> None:
        """Forget attempts whose outcome was answered, or that were lost and have ended."""
        with self._lock:
            leases = self._leases
            if self._lost:
                self._lost.difference_update(attempts)
            # Written out instead of calling _remove: it runs for every task.
            for attempt in attempts:
                lease = leases.get(attempt.assignment.lease)
                if lease is not None:
                    lease.attempts.discard(attempt)
                    if not lease.attempts:
                        del leases[lease.key]

    def lose(self, attempt: Attempt) -> None:
        """Stop renewing the lease for an attempt that was lost and whose handler still runs."""
        with self._lock:
            if self._remove(attempt):
                self._lost.add(attempt)

    def _remove(self, attempt: Attempt) -> bool:
        """Remove an attempt from its lease, and an empty lease with it. Returns whether it was held."""
        lease = self._leases.get(attempt.assignment.lease)
        if lease is None or attempt not in lease.attempts:
            return False
        lease.attempts.remove(attempt)
        if not lease.attempts:
            del self._leases[lease.key]
        return True

    def shortest_s(self) -> float:
        """The length of the shortest held lease, infinite if none is held."""
        with self._lock:
            return min((lease.length_s for lease in self._leases.values()), default=float("inf"))

    def of_queue(self, queue: str) -> int:
        """How many tasks of a queue are held or still run. All tasks of a lease are from one queue."""
        with self._lock:
            lost = sum(attempt.assignment.queue == queue for attempt in self._lost)
            return lost + sum(len(lease.attempts) for lease in self._leases.values() if lease.queue == queue)

    def attempts(self) -> list[Attempt]:
        with self._lock:
            return [attempt for lease in self._leases.values() for attempt in lease.attempts]

    def leases(self) -> list[tuple[Lease, list[Attempt]]]:
        with self._lock:
            return [(lease, list(lease.attempts)) for lease in self._leases.values()]
