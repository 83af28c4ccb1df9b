"""The start page: what happened lately, what needs a person now, queues and workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from markupsafe import Markup

from onetray.dashboard import charts
from onetray.dashboard.pages import Flash, action, page
from onetray.dashboard.view import Form, View
from onetray.domain.clock import SECOND
from onetray.domain.errors import InvalidInput
from onetray.domain.overview import Overview, Statistics, Waiting

MINUTE, HOUR, DAY = 60, 3_600, 86_400
SCHEDULES = 100
"""How many schedules the page shows."""
SCHEDULE_BADGES = {"active": "running", "paused": "paused", "orphaned": "failed", "ended": "cancelled"}
WORKER_BADGES = {"running": "running", "stopping": "waiting", "lost": "failed", "unregistered": "cancelled"}


class Range(NamedTuple):
    """How far back charts go, and in how many steps."""

    name: str
    seconds: int
    buckets: int


RANGES = {
    "15m": Range("15 min", 15 * MINUTE, 15),
    "1h": Range("1 h", HOUR, 60),
    "6h": Range("6 h", 6 * HOUR, 72),
    "24h": Range("24 h", DAY, 96),
    "7d": Range("7 d", 7 * DAY, 84),
}
DEFAULT = "1h"
MAX_LIMITS = 50
"""How many limits are listed."""


@page("/", title="Overview", nav=10)
def overview(view: View) -> dict[str, Any]:
    chosen = view.query.text("range", DEFAULT)
    if chosen not in RANGES:
        raise InvalidInput(f"there is no range {chosen[:20]!r}: use {', '.join(RANGES)}", field="range")
    range_, now = RANGES[chosen], view.engine.overview()
    statistics = view.engine.statistics(since=view.now - range_.seconds * SECOND, buckets=range_.buckets)
    return {
        "ranges": [
            {"name": r.name, "href": view.url(range=None if key == DEFAULT else key), "current": key == chosen}
            for key, r in RANGES.items()
        ],
        "cards": cards(statistics), "is_complete": statistics.is_complete, "queues": now.queues,
        "workers": now.workers, "needs": needs(view, now), "missing": now.needs_human.missing_workers,
        "worker_badges": WORKER_BADGES, "schedules": view.engine.schedules(limit=SCHEDULES),
        "schedule_badges": SCHEDULE_BADGES, "limits": view.engine.limits(limit=MAX_LIMITS),
    }  # fmt: skip


class Card(NamedTuple):
    """A small chart with its figure."""

    title: str
    figure: str
    unit: str
    more: str
    """The figures beside it."""
    chart: Markup
    first: str
    last: str
    """The ends of its axis."""
    top: str
    """Its highest value."""


def cards(statistics: Statistics) -> list[Card]:
    """Throughput, failures, and how long tasks waited and ran."""
    total, buckets = statistics.total, statistics.buckets
    labels = [_label(bucket.at, statistics.bucket_s) for bucket in buckets]
    ends = _end(statistics.since_at, statistics), _end(statistics.until_at, statistics)
    lost, per = total.failed + total.dead_lettered, _per(statistics.bucket_s)
    done = {"succeeded": [b.succeeded for b in buckets]}
    bad = {"failed": [b.failed for b in buckets], "dead_lettered": [b.dead_lettered for b in buckets]}
    ended = total.succeeded + lost
    return [
        Card(
            "Throughput", f"{total.succeeded:,}", "succeeded", f"{total.submitted:,} submitted",
            charts.bars(done, labels, title="Tasks that succeeded, by time"), *ends, _top(done, per),
        ),
        Card(
            "Failures", f"{lost:,}", "failed", f"{lost / ended:.1%} of those ended" if ended else "none ended",
            charts.bars(bad, labels, title="Tasks that failed, by time"), *ends, _top(bad, per),
        ),
        _times("Queue time", [(b.queue_p50_s, b.queue_p95_s) for b in buckets], total.queue_p50_s, total.queue_p95_s,
               labels, ends),
        _times("Run time", [(b.run_p50_s, b.run_p95_s) for b in buckets], total.run_p50_s, total.run_p95_s, labels,
               ends),
    ]  # fmt: skip


def _times(
    title: str, pairs: list[tuple[float | None, float | None]], p50: float | None, p95: float | None,
    labels: list[str], ends: tuple[str, str],
) -> Card:  # fmt: skip
    series = {"p50": [low for low, _ in pairs], "p95": [high for _, high in pairs]}
    highest = max((value for values in series.values() for value in values if value is not None), default=None)
    chart = charts.lines(series, labels, seconds_text, title=f"{title}, median and 95th percentile")
    return Card(title, seconds_text(p50), "median", f"{seconds_text(p95)} p95", chart, *ends, _most(highest))


def seconds_text(seconds: float | None) -> str:
    """A measured time with two or three digits."""
    if seconds is None:
        return "no data"
    if seconds < 1:
        return f"{seconds * 1_000:.3g} ms"
    if seconds < 2 * MINUTE:
        return f"{seconds:.3g} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 2 * HOUR else f"{seconds / HOUR:.1f} h"


def _most(seconds: float | None) -> str:
    return "" if seconds is None else f"max {seconds_text(seconds)}"


def _top(series: dict[str, list[int]], per: str) -> str:
    highest = max((sum(values) for values in zip(*series.values(), strict=True)), default=0)
    return f"max {highest:,} {per}" if highest else ""


def _per(bucket_s: int) -> str:
    whole = {MINUTE: "a minute", HOUR: "an hour"}
    if bucket_s in whole:
        return whole[bucket_s]
    return f"in {bucket_s // HOUR} h" if bucket_s % HOUR == 0 else f"in {bucket_s // MINUTE} min"


def _label(at: int, bucket_s: int) -> str:
    when = datetime.fromtimestamp(at / SECOND, UTC)
    return f"{when:%d %b %H:%M}" if bucket_s >= HOUR else f"{when:%H:%M}"


def _end(at: int, statistics: Statistics) -> str:
    when = datetime.fromtimestamp(at / SECOND, UTC)
    return f"{when:%d %b}" if statistics.until_at - statistics.since_at > 2 * DAY * SECOND else f"{when:%H:%M}"


class Need(NamedTuple):
    """Something that waits for a person."""

    name: str
    cls: str
    waiting: Waiting
    href: str | None


def needs(view: View, now: Overview) -> list[Need]:
    """What needs a person, without what is empty."""
    found, paused = now.needs_human, [q.paused_at for q in now.queues if q.paused_at is not None and q.ready]
    all_ = [
        Need("to approve", "waiting", found.approvals, view.link_if("waiting")),
        Need("waiting for input", "waiting", found.inputs, view.link_if("waiting")),
        Need("blocked", "waiting", found.blocked, view.link_if("jobs", state="blocked")),
        Need("dead letters", "failed", found.dead_letters, view.link_if("dead")),
        Need(
            "queue paused" if len(paused) == 1 else "queues paused",
            "waiting",
            Waiting(len(paused), False, min(paused, default=None), []),
            view.link_if("queues"),
        ),
    ]
    return [need for need in all_ if need.waiting.count]


@action("/schedules/{name:path}/pause")
def pause_schedule(view: View, form: Form) -> Flash:
    name = view.path["name"]
    view.engine.pause_schedule(name)
    return Flash(f"The schedule {name} is paused. Its jobs continue.")


@action("/schedules/{name:path}/resume")
def resume_schedule(view: View, form: Form) -> Flash:
    name = view.path["name"]
    view.engine.resume_schedule(name)
    return Flash(f"The schedule {name} fires again.")


@action("/schedules/{name:path}/trigger")
def trigger_schedule(view: View, form: Form) -> Flash:
    name = view.path["name"]
    fire = view.engine.trigger_schedule(name)
    return Flash(f"The job {fire.job} is submitted." if fire.job else f"Refused: {fire.why}")
