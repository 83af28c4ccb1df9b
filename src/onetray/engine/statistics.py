"""Numbers for charts: events by minute and by hour, and how long tasks waited and ran.

Owns what is counted. The janitor adds the rows of the log after a cursor to the table `statistic` and moves the cursor,
in one transaction: each event is counted once, whoever is killed, and however many janitors there are. Counts are
exact. Times come from a sample of the tasks that have ended: each stands for as many as were left out.

Counting begins with the events after the migration that created the table. Jobs that are deleted before they are
counted, within some seconds, are missing.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.domain.lifecycle import TASK
from onetray.store.base import Store, Tx
from onetray.store.overview_rows import EndedBatchRow, VariedLogRow

MINUTE, HOUR = 60, 3_600
"""The spans of time that have numbers, in seconds."""
KEEP_DAYS = {MINUTE: 8, HOUR: 90}
QUEUE_TIME, RUN_TIME = "queue_time", "run_time"
"""The types of numbers that are histograms."""
ENDS = [t.event for t in TASK.transitions if t.target in TASK.terminal]
EVERY_S = 1.0
"""How often all janitors of a database together count."""
MAX_ROWS, MAX_WINDOWS = 20_000, 5
"""Rows of the log in one transaction, and transactions at once: due rows wait for them."""
MAX_SAMPLE = 200
"""How many tasks of one pass are looked at for their times, besides one of each namespace."""
STEPS_OF_BUCKETS = 4
"""Buckets of a histogram for each doubling: a bucket is 19 % wide."""
PRUNE_EVERY_S, MAX_PRUNED = 60.0, 2_000


class Number(NamedTuple):
    """What a number counts."""

    ns: int
    at: int
    """The start of its minute."""
    type: str
    bucket: int = 0


Numbers = Counter[Number]


class StatisticsCounter:
    """Counts the log, and deletes old numbers. For the loop of a janitor."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count_at = self._prune_at = float("-inf")

    def step(self) -> int:
        """Count, if it is time for it. Returns 0: the loop of the janitor need not come again at once."""
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + EVERY_S
            self._count()
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_EVERY_S
            self.prune()
        return 0

    def _count(self) -> None:
        (cursor,) = self._store.read("statistic_cursor")
        if 0 <= self._store.now() - cursor.counted_at < EVERY_S * SECOND:
            # Another janitor has counted.
            return
        for _ in range(MAX_WINDOWS):
            if not self.count_window():
                return

    def count_window(self, limit: int = MAX_ROWS) -> bool:
        """Count the next rows of the log. Returns whether there may be more."""
        (cursor,) = self._store.read("statistic_cursor")
        after = cursor.upto
        window = read_window(self._store, after, self._store.upto(), limit)
        if window.upto <= after:
            return False
        columns = _columns(window.numbers)

        def add(tx: Tx) -> bool:
            if not tx.query("move_statistic_cursor", after=after, upto=window.upto, at=tx.now):
                # Another janitor has counted these rows.
                return False
            failpoints.hit("counting")
            tx.batch("add_statistics", columns)
            failpoints.hit("counted")
            return window.is_full

        return self._store.write(add, again=False)

    def prune(self) -> int:
        """Delete old numbers, some at a time. Returns how many."""
        return self._store.write(_prune, again=False)


def _prune(tx: Tx) -> int:
    removed = 0
    for span, days in KEEP_DAYS.items():
        before = tx.now - days * 86_400 * SECOND
        pruned = len(tx.query("prune_statistics", span=span, before=before, limit=MAX_PRUNED))
        if pruned:
            tx.query("note_removed", at=before)
        removed += pruned
    return removed


def _columns(numbers: Mapping[Number, int]) -> dict[str, list[int | str]]:
    """Rows for the table: of the minute, and of its hour. Sorted, as everything that is locked."""
    by_span: Counter[tuple[int, int, int, str, int]] = Counter()
    for number, count in numbers.items():
        for span in KEEP_DAYS:
            by_span[number.ns, span, start_of(number.at, span), number.type, number.bucket] += count
    rows = sorted((*key, count) for key, count in by_span.items())
    names = ("ns", "span", "at", "type", "bucket", "number")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def start_of(at: int, span: int) -> int:
    """The start of the minute or the hour of a time."""
    return at - at % (span * SECOND)


class Window(NamedTuple):
    """A part of the log, counted."""

    numbers: Numbers
    upto: int
    is_full: bool
    """Whether it ended at the limit: there may be more."""


def read_window(store: Store, after: int, upto: int, limit: int) -> Window:
    """Count the events after a cursor, in a limited number of rows of the log. A row is never split."""
    numbers: Numbers = Counter()
    ((last,),) = store.read("end_of_count", after=after, upto=upto, scan=limit) if upto > after else ((None,),)
    end = after if last is None else int(last)
    if end > after:
        batches = _count_events(store, numbers, after, end)
        _sample_times(store, numbers, after, end, batches)
    return Window(numbers, end, end < upto)


def _count_events(store: Store, numbers: Numbers, after: int, upto: int) -> int:
    """Count events by type. Returns in how many rows of the log tasks have ended."""
    ended = 0
    for row in store.read("count_log", after=after, upto=upto):
        numbers[Number(row.ns, row.at, row.type)] += row.number
        ended += row.batches * (row.type in ENDS)
    for varied in store.read("varied_log", after=after, upto=upto):
        for ns, at, number in _numbers_of(varied):
            numbers[Number(ns, at, varied.type)] += number
        ended += varied.type in ENDS
    return ended


def _numbers_of(row: VariedLogRow) -> Iterator[tuple[int, int, int]]:
    """Namespaces, minutes, and how many events of a row each has, without events that were removed."""
    varied = orjson.loads(row.varied or "{}")
    earlier = varied.get("ts") or [0] * row.size
    first, last = start_of(row.ts - max(earlier), MINUTE), start_of(row.ts - min(earlier), MINUTE)
    if first == last and row.ns is not None:
        # So are nearly all: one by one they would cost a busy worker a twentieth of its time.
        yield row.ns, first, row.size
        return
    for ns, us in zip(varied.get("ns") or [row.ns] * row.size, earlier, strict=True):
        if ns is not None:
            yield ns, start_of(row.ts - us, MINUTE), 1


def _sample_times(store: Store, numbers: Numbers, after: int, upto: int, batches: int) -> None:
    if not batches:
        return
    step = -(-batches // MAX_SAMPLE)
    by_namespace: dict[int, list[int]] = defaultdict(list)
    for row in store.read("sample_ended", after=after, upto=upto, ends=ENDS, step=step):
        for ns, key in _tasks_of(row):
            by_namespace[ns].append(key)
    weights = _weights(by_namespace, _ended(numbers))
    for task in store.read("times_of_tasks", keys=sorted(weights)) if weights else ():
        at = start_of(task.finished_at, MINUTE)
        for type_, us in (
            (QUEUE_TIME, task.started_at - task.claimable_at), (RUN_TIME, task.finished_at - task.started_at),
        ):  # fmt: skip
            numbers[Number(task.ns, at, type_, bucket_of(us))] += weights[task.key]


def _tasks_of(row: EndedBatchRow) -> Iterator[tuple[int, int]]:
    varied = orjson.loads(row.varied) if row.varied else {}
    keys = varied.get("entity") or range(row.entity or 0, (row.entity or 0) + row.size)
    namespaces = varied.get("ns") or [row.ns] * row.size
    return ((ns, key) for ns, key in zip(namespaces, keys, strict=True) if ns is not None and key is not None)


def _ended(numbers: Numbers) -> Counter[int]:
    """How many tasks have ended in each namespace."""
    ended: Counter[int] = Counter()
    for number, count in numbers.items():
        if number.type in ENDS:
            ended[number.ns] += count
    return ended


def _weights(by_namespace: Mapping[int, list[int]], ended: Counter[int]) -> dict[int, int]:
    """Tasks of each namespace, evenly chosen, and for how many each of them stands."""
    weights: dict[int, int] = {}
    for ns, keys in by_namespace.items():
        size = min(len(keys), max(1, MAX_SAMPLE * ended[ns] // max(ended.total(), 1)))
        for i in range(size):
            weights[keys[i * len(keys) // size]] = (i + 1) * ended[ns] // size - i * ended[ns] // size
    return weights


def bucket_of(us: int) -> int:
    """The bucket of a histogram for a time in microseconds."""
    return int(STEPS_OF_BUCKETS * math.log2(us)) if us > 1 else 0


def quantile_s(histogram: Mapping[int, int], share: float) -> float | None:
    """The time, in seconds, that this share of a histogram does not exceed; None if it is empty."""
    left = share * sum(histogram.values())
    for bucket in sorted(histogram):
        count = histogram[bucket]
        if left <= count:
            return round(2 ** ((bucket + left / count) / STEPS_OF_BUCKETS) / SECOND, 6)
        left -= count
    return None
