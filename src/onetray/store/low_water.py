"""The position in a queue of PostgreSQL where its claims start to scan, kept by each process for itself.

Owns when a claim scans from the start of a queue, which finds everything, and when it starts at the mark, which is
fast. It scans from the start after this process has put a task before the mark, after a claim that locked tasks and did
not take them, after a claim that found too little, and every second. That also finds what other processes put there.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onetray.store.base import Columns

START_OF_QUEUE = -(2**31), 0
RECENT = 100


@dataclass(slots=True)
class LowWater:
    """The position in a queue where its claims start to scan.

    While an old snapshot is open, deleted rows stay in the index, and a scan from the start has to skip them. Before
    the first task of the last claim, only tasks that entered since then are claimable.
    """

    rank: int = START_OF_QUEUE[0]
    task: int = START_OF_QUEUE[1]
    scanned_at: float = field(default=float("-inf"))
    """When a claim last scanned from the start."""
    costs: deque[float] = field(default_factory=lambda: deque([0.0], maxlen=3))
    """The seconds that the last scans from the start took."""
    entries: int = 0
    """How many tasks this process has put into the queue."""
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The positions of the last of them."""

    def enter(self, rank: int, task: int) -> None:
        """Count a task that entered the queue. If it is before the mark, the next claim scans from the start."""
        self.recent.append((rank, task))
        self.entries += 1
        if (rank, task) < (self.rank, self.task):
            self.reset()

    def move_to(self, place: tuple[int, int], entries: int) -> None:
        """Set the mark, but not past tasks that entered after `entries` was read: the scan has not seen them."""
        missed = self.entries - entries
        newer = self.recent.copy() if missed <= RECENT else [(self.rank, self.task)]
        self.rank, self.task = min([place, *(newer if missed else ())])

    def reset(self) -> None:
        """Make the next claim scan from the start."""
        self.scanned_at = float("-inf")

    def can_start_at_mark(self) -> bool:
        """Whether no scan from the start is due: there is one every second, or fewer if they are slow."""
        return time.monotonic() - self.scanned_at < max(1.0, self.rest_s())

    def rest_s(self, found: bool = True) -> float:
        """The pause after a scan from the start: such scans take at most a fortieth of the time.

        A claim that found nothing has no other work: its scans may take a quarter. The fastest scan of the last three
        counts: on a busy machine any of them may have waited for a processor.
        """
        return min(10.0, (40 if found else 4) * min(self.costs))


def first_entry(ready: Columns) -> Columns:
    """The first of the rows that enter one queue with one rank: no other need be compared with the mark."""
    if isinstance(ready["queue"], list) or isinstance(ready["rank"], list):
        return ready
    return {"queue": ready["queue"], "rank": ready["rank"], "key": [min(ready["key"])]}
