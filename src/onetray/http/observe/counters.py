"""Numbers that only grow: counters and histograms, with few labels.

Owns how they are kept, and how many labels there may be. They are lists of numbers, so that a request costs a few
microseconds for all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from threading import Lock
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

MOST = 300
"""Different labels of one number. What comes after them is counted as `other`."""
OTHER = "other"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0)
"""The upper ends of buckets. Those in metrics.sql are the same."""

Labels = tuple[str, ...]


class Counter:
    """How often something has happened, by its labels."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._found: dict[Labels, float] = {}
        self._lock = Lock()

    def add(self, *labels: str, by: float = 1) -> None:
        with self._lock:
            labels = _known(self._found, labels)
            self._found[labels] = self._found.get(labels, 0) + by

    def family(self) -> Any:
        family = CounterMetricFamily(self.name, self._help, labels=self._labels)
        for labels, value in sorted(self._found.copy().items()):
            family.add_metric(labels, value)
        return family


class Histogram:
    """How long something has taken, by its labels."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._found: dict[Labels, list[float]] = {}
        self._lock = Lock()

    def add(self, *labels: str, s: float) -> None:
        self.put(bisect_left(SECONDS, s), 1, s, labels)

    def put(self, bucket: int, count: int, s: float, labels: Labels) -> None:
        """So many at once, of one bucket."""
        with self._lock:
            labels = _known(self._found, labels)
            numbers = self._found.setdefault(labels, [0.0] * (len(SECONDS) + 2))
            numbers[bucket] += count
            numbers[-1] += s

    def family(self) -> Any:
        family = HistogramMetricFamily(self.name, self._help, labels=self._labels)
        for labels, numbers in sorted(self._found.copy().items()):
            family.add_metric(labels, list(_up_to(numbers)), numbers[-1])
        return family


def _up_to(numbers: list[float]) -> Iterator[tuple[str, float]]:
    """The buckets as Prometheus has them: each with all that lie below it."""
    total = 0.0
    for end, number in zip((*map(str, SECONDS), "+Inf"), numbers, strict=False):
        total += number
        yield end, total


def _known(found: dict[Labels, Any], labels: Labels) -> Labels:
    return labels if labels in found or len(found) < MOST else (OTHER,) * len(labels)
