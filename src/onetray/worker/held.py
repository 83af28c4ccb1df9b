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
    from onetray.worker.run import Run


@dataclass(eq=False, slots=True)
class Lease:
    """One claim, with those of its tasks that are still held."""

    key: int
    queue: str
    length_s: float
    sure_until: float
    beat_at: float
    runs: set[Run] = field(default_factory=set)


class Held:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}

    def __len__(self) -> int:
        with self._lock:
            return sum(len(lease.runs) for lease in self._leases.values())

    def take(self, runs: Iterable[Run], asked_at: float) -> None:
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

    def drop(self, runs: Iterable[Run]) -> None:
        """They were reported, or are not ours any more."""
        with self._lock:
            for run in runs:
                lease = self._leases.get(run.assignment.lease)
                if lease is None:
                    continue
                lease.runs.discard(run)
                if not lease.runs:
                    del self._leases[lease.key]

    def shortest_s(self) -> float:
        """The length of the shortest lease that is held."""
        with self._lock:
            return min((lease.length_s for lease in self._leases.values()), default=float("inf"))

    def of_queue(self, queue: str) -> int:
        """How many of a queue are held. A claim is from one queue, and so are the tasks of its lease."""
        with self._lock:
            return sum(len(lease.runs) for lease in self._leases.values() if lease.queue == queue)

    def runs(self) -> list[Run]:
        with self._lock:
            return [run for lease in self._leases.values() for run in lease.runs]

    def leases(self) -> list[tuple[Lease, list[Run]]]:
        with self._lock:
            return [(lease, list(lease.runs)) for lease in self._leases.values()]
