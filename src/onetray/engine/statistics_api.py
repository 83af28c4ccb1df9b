"""The read of the statistics: series for charts, from the numbers by minute and hour and the end of the log.

statistics.py counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from onetray.domain.checks import FAR_US, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import TASK
from onetray.domain.overview import Statistics, StatisticsBucket
from onetray.engine.reads import DatabaseReads, read
from onetray.engine.statistics import (
    HOUR,
    KEEP_DAYS,
    MINUTE,
    QUEUE_TIME,
    RUN_TIME,
    Numbers,
    quantile_s,
    read_window,
)
from onetray.redaction.answers import plain

DEFAULT_S = HOUR
MAX_BUCKETS = 1_000
MAX_TAIL = 50_000
"""How many rows of the log that no janitor has counted yet are counted with a read."""
CURSOR_SLOT = -1
"""Not a slot: up to which event the numbers count."""
COUNTED = {
    "submitted": (TASK.submit.event,),
    "started": (TASK.start.event,),
    "succeeded": (TASK.succeed.event,),
    "failed": (TASK.fail.event, TASK.time_out.event),
    "dead_lettered": (TASK.dead_letter.event,),
    "cancelled": (TASK.cancel.event,),
    "retried": (TASK.retry.event,),
    "lease_expired": (TASK.expire.event,),
}
"""The fields of a bucket, and the types of events that they count."""


class Slots(NamedTuple):
    """How the range of a chart is divided."""

    since: int
    until: int
    width: int
    """In microseconds."""
    span: int
    """Whether numbers by minute or by hour fill it."""

    @property
    def number(self) -> int:
        return (self.until - self.since) // self.width


class StatisticsApi(DatabaseReads):
    """The engine's read of statistics, on a database."""

    @read(plain)
    def statistics(
        self, *, since: int | None = None, until: int | None = None, buckets: int = 60, namespace: str = "default"
    ) -> Statistics:
        """What happened to the tasks of a namespace, in so many spans of time, or fewer; by default in the last hour.

        A span has whole minutes or, for more than 8 days ago or from an hour on, whole hours. The range is extended to
        whole spans, which may be two more. Counts are exact, up to the last commit. Times come from a sample of the
        tasks that ended.
        """
        self.must_not_have_forked()
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        slots = self._slots(since, until, whole(buckets, "buckets", 1, MAX_BUCKETS))
        is_complete, numbers = (True, {}) if ns is None else self._numbers(ns, slots)
        return Statistics(
            slots.since, slots.until, slots.width // SECOND,
            [_bucket(slots.since + i * slots.width, [numbers.get(i)]) for i in range(slots.number)],
            _bucket(slots.since, numbers.values()), is_complete,
        )  # fmt: skip

    def _slots(self, since: int | None, until: int | None, buckets: int) -> Slots:
        now = self.store.now()
        end = now + 1 if until is None else whole(until, "until", 0, FAR_US)
        begin = max(end - DEFAULT_S * SECOND, 0) if since is None else whole(since, "since", 0, FAR_US)
        if begin >= end:
            raise InvalidInput("since must be before until", field="since")
        is_old = begin < now - KEEP_DAYS[MINUTE] * 86_400 * SECOND
        span = HOUR if is_old or (end - begin) // buckets >= HOUR * SECOND else MINUTE
        step = span * SECOND
        # An hour and the moment that it took to ask for it are still an hour.
        width = max(1, -(-(end - begin - step) // (buckets * step))) * step
        # Spans begin at multiples of their length: those of a chart that is read again stay where they were.
        first = begin - begin % width
        return Slots(first, end + -end % width, width, span)

    def _numbers(self, ns: int, slots: Slots) -> tuple[bool, dict[int, Counter[tuple[str, int]]]]:
        """The numbers by slot, type and bucket, and whether they are complete."""
        by_slot: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
        for row in self.store.read(
            "statistics", ns=ns, span=slots.span, since=slots.since, until=slots.until, width=slots.width
        ):
            by_slot[row.slot][row.type, row.bucket] += row.number
        # From the same statement as the numbers: a janitor that counts meanwhile changes neither.
        counted_upto = by_slot.pop(CURSOR_SLOT).total()
        ((last,),) = self.store.read("last_event_id")
        tail = read_window(self.store, counted_upto, int(last), MAX_TAIL)
        _add(by_slot, tail.numbers, ns, slots)
        return not tail.is_full, by_slot


def _add(by_slot: dict[int, Counter[tuple[str, int]]], numbers: Numbers, ns: int, slots: Slots) -> None:
    for number, count in numbers.items():
        if number.ns == ns and slots.since <= number.at < slots.until:
            by_slot[(number.at - slots.since) // slots.width][number.type, number.bucket] += count


def _bucket(at: int, parts: Iterable[Counter[tuple[str, int]] | None]) -> StatisticsBucket:
    histograms: dict[str, Counter[int]] = {QUEUE_TIME: Counter(), RUN_TIME: Counter()}
    events: Counter[str] = Counter()
    for part in parts:
        for (type_, bucket), count in (part or {}).items():
            if type_ in histograms:
                histograms[type_][bucket] += count
            else:
                events[type_] += count
    counts = {name: sum(events[type_] for type_ in types) for name, types in COUNTED.items()}
    waited, ran = histograms[QUEUE_TIME], histograms[RUN_TIME]
    return StatisticsBucket(
        at, **counts, queue_p50_s=quantile_s(waited, 0.5), queue_p95_s=quantile_s(waited, 0.95),
        run_p50_s=quantile_s(ran, 0.5), run_p95_s=quantile_s(ran, 0.95),
        events={type_: count for type_, count in sorted(events.items()) if count},
    )  # fmt: skip
