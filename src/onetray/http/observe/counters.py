"""Counters and histograms with a bounded number of labels.

Owns how they are stored: as lists of numbers, so that all of them together cost a request a few microseconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from threading import Lock
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

MAX_SERIES = 300
"""Label combinations per metric. Any more are counted under `other`."""
OTHER = "other"
BUCKET_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0)
"""Upper bounds of the buckets, the same as in metrics.sql."""

Labels = tuple[str, ...]


class Counter:
    """Counts occurrences by label."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._series: dict[Labels, float] = {}
        self._lock = Lock()

    def add(self, *labels: str, by: float = 1) -> None:
        with self._lock:
            labels = _series_key(self._series, labels)
            self._series[labels] = self._series.get(labels, 0) + by

    def raise_to(self, value: float, *labels: str) -> None:
        """Take over a value that is counted elsewhere. A counter never falls."""
        with self._lock:
            self._series[labels] = max(value, self._series.get(labels, 0))

    def family(self) -> Any:
        family = CounterMetricFamily(self.name, self._help, labels=self._labels)
        for labels, value in sorted(self._series.copy().items()):
            family.add_metric(labels, value)
        return family


class Histogram:
    """Counts durations by label and bucket."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._series: dict[Labels, list[float]] = {}
        self._lock = Lock()

    def add(self, *labels: str, s: float) -> None:
        self.put(bisect_left(BUCKET_BOUNDS_S, s), 1, s, labels)

    def put(self, bucket: int, count: int, s: float, labels: Labels) -> None:
        """Add `count` observations of one bucket, `s` seconds in total."""
        with self._lock:
            labels = _series_key(self._series, labels)
            values = self._series.setdefault(labels, [0.0] * (len(BUCKET_BOUNDS_S) + 2))
            values[bucket] += count
            values[-1] += s

    def family(self) -> Any:
        family = HistogramMetricFamily(self.name, self._help, labels=self._labels)
        for labels, values in sorted(self._series.copy().items()):
            family.add_metric(labels, list(_cumulative(values)), values[-1])
        return family


def _cumulative(values: list[float]) -> Iterator[tuple[str, float]]:
    """The buckets as Prometheus expects them: each includes all smaller ones."""
    total = 0.0
    for bound, count in zip((*map(str, BUCKET_BOUNDS_S), "+Inf"), values, strict=False):
        total += count
        yield bound, total


def _series_key(series: dict[Labels, Any], labels: Labels) -> Labels:
    return labels if labels in series or len(series) < MAX_SERIES else (OTHER,) * len(labels)
