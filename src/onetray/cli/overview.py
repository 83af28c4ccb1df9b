"""`onetray stats`: what happened to tasks, by time. `onetray audit`: what people have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli.format import age, clock
from onetray.cli.jobs.follow import subject_of
from onetray.cli.options import common, limit_option, opened
from onetray.cli.output import jsonable, print_json, print_json_list
from onetray.cli.tables import print_table
from onetray.domain.clock import SECOND, duration

if TYPE_CHECKING:
    from onetray.domain.overview import StatisticsBucket
    from onetray.domain.task import Event
    from onetray.engine.api import EngineApi

COUNTS = ("submitted", "started", "succeeded", "failed", "dead_lettered", "cancelled", "retried", "lease_expired")
TIMES = ("queue_p50_s", "queue_p95_s", "run_p50_s", "run_p95_s")
HEADINGS = ("since", *(name.replace("_", " ") for name in COUNTS), "queue p50", "queue p95", "run p50", "run p95")


@click.command(short_help="Show what happened to tasks, by time.")
@click.option("--since", "since_s", type=age, metavar="AGE", default="1h", show_default=True, help="How far back.")
@click.option("--buckets", type=click.IntRange(1, 1_000), default=12, show_default=True, help="How many lines, about.")
@common
def stats(since_s: float, buckets: int, database: str, namespace: str, as_json: bool) -> None:
    """Show how many tasks were submitted, started and ended, and how long they waited and ran.

    Counts are exact. The median (p50) and the 95th percentile of times come from a sample of the tasks that ended.
    """
    with opened(database) as engine:
        since = max(engine.now() - int(since_s * SECOND), 0)
        found = engine.statistics(since=since, buckets=buckets, namespace=namespace)
    if as_json:
        print_json(found)
        return
    total = _cells(found.total)
    print_table(HEADINGS, [*((clock(b.at), *_cells(b)) for b in found.buckets), ("total", *total)])
    if not found.is_complete:
        click.echo("the newest events are missing: no janitor has counted for long; run a worker or a server", err=True)


def _cells(bucket: StatisticsBucket) -> list[str]:
    times = (getattr(bucket, name) for name in TIMES)
    return [
        *(f"{getattr(bucket, name):,}" for name in COUNTS),
        *("" if s is None else duration(int(s * SECOND)) for s in times),
    ]


@click.command(short_help="List what people have done, newest first.")
@click.option("--person", metavar="NAME", help="Only what this person has done.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only actions of this type: queue.paused.")
@click.option("--tokens", is_flag=True, help="Actions about tokens, too. A server needs the scope admin for it.")
@limit_option
@common
def audit(
    person: str | None,
    types: tuple[str, ...],
    tokens: bool,
    limit: int,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """List who did what: pauses, limits, approvals, answers, cancels, redrives, retries, changed priorities, deletions.

    Actions about a job are listed as long as the job exists.
    """
    filters = {"person": person, "types": list(types), "tokens": tokens or None, "namespace": namespace}
    with opened(database) as engine:
        actions = _actions(engine, limit, filters)
    if as_json:
        print_json_list("actions", [_as_json(*action) for action in actions], limit)
        return
    print_table(
        ("when", "who", "action", "what", "of", "why"),
        [
            (clock(e.ts), e.actor.partition(":")[2], e.type, subject_of(e), f"{count:,}" if count > 1 else "", e.cause)
            for e, count in actions
        ],
    )


def _as_json(event: Event, count: int) -> dict[str, Any]:
    return {"count": count, **jsonable(event)}


def _actions(engine: EngineApi, limit: int, filters: dict[str, Any]) -> list[tuple[Event, int]]:
    """The newest actions, from as many pages as it takes."""
    found: list[tuple[Event, int]] = []
    before: int | None = None
    while True:
        page = engine.audit(before=before, limit=min(limit - len(found), 1_000), **filters)
        found += zip(page.events, page.counts, strict=True)
        before = page.before
        if before is None or len(found) >= limit:
            return found
