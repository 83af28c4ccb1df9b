"""What this worker holds: its runs, their leases, and until when each is sure.

Owns the worker's own reckoning of time: a lease is counted from before it was asked for, so it never seems longer
here than in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onetray.worker.attempt import Attempt


@dataclass(eq=False, slots=True)
class Lease:
    """One claim, with those of its tasks that are still held."""

    key: int
    queue: str
    length_s: float
    sure_until: float
    beat_at: float
    runs: set[Attempt] = field(default_factory=set)


class HeldLeases:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._lost: set[Attempt] = set()
        """Taken from this worker while their handlers run: under no lease here, but in the count of their queue."""

    def __len__(self) -> int:
        with self._lock:
            return sum(len(lease.runs) for lease in self._leases.values())

    def take(self, runs: Iterable[Attempt], asked_at: float) -> None:
        """Note what a claim gave that was asked for then."""
        with self._lock:
            for run in runs:
                a = run.assignment
                lease = self._leases.get(a.lease)
                if lease is None:
                    lease = Lease(a.lease, a.queue, a.lease_s, asked_at + a.lease_s, asked_at + a.lease_s / 3)
                    self._leases[a.lease] = lease
                lease.runs.add(run)
                run.lease = lease

    def drop(self, runs: Iterable[Attempt]) -> None:
        """They were reported, or were lost and have ended."""
        with self._lock:
            for run in runs:
                self._lost.discard(run)
                self._release(run)

    def lose(self, run: Attempt) -> None:
        """It is not ours any more, and its handler still runs: nothing renews a lease in its name."""
        with self._lock:
            if self._release(run):
                self._lost.add(run)

    def _release(self, run: Attempt) -> bool:
        """Take it from its lease, which goes with the last one. Whether it was there."""
        lease = self._leases.get(run.assignment.lease)
        if lease is None or run not in lease.runs:
            return False
        lease.runs.remove(run)
        if not lease.runs:
            del self._leases[lease.key]
        return True

    def shortest_s(self) -> float:
        """The length of the shortest lease that is held."""
        with self._lock:
            return min((lease.length_s for lease in self._leases.values()), default=float("inf"))

    def of_queue(self, queue: str) -> int:
        """How many of a queue are held or still run. A claim is from one queue, and so are the tasks of its lease."""
        with self._lock:
            lost = sum(run.assignment.queue == queue for run in self._lost)
            return lost + sum(len(lease.runs) for lease in self._leases.values() if lease.queue == queue)

    def runs(self) -> list[Attempt]:
        with self._lock:
            return [run for lease in self._leases.values() for run in lease.runs]

    def leases(self) -> list[tuple[Lease, list[Attempt]]]:
        with self._lock:
            return [(lease, list(lease.runs)) for lease in self._leases.values()]
