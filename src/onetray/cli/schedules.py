"""`onetray schedules`: add, list, show, explain, preview, pause, resume, trigger, backfill and remove schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli import BadInput
from onetray.cli.completion import complete_flows, complete_kinds, complete_queues, complete_schedules
from onetray.cli.format import age, counted, moment
from onetray.cli.jobs.act import reason_option
from onetray.cli.options import acting_user, common, confirm, json_value, label, limit_option, opened, yes_option
from onetray.cli.output import print_json, print_json_list
from onetray.cli.tables import print_facts, print_table
from onetray.domain.clock import SECOND, duration
from onetray.domain.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onetray.domain.fire_times import FireTime
    from onetray.domain.schedule import Schedule, ScheduledFire

NOTES = {
    "moved": "moved: this local time does not exist on this day",
    "twice": "this local time exists twice on this day",
}


def time_value(value: str | int) -> int:
    """The microseconds of a time as 2026-11-18T07:00+01:00; without an offset, it is in UTC."""
    from datetime import UTC, datetime

    if isinstance(value, int):
        return value
    try:
        at = datetime.fromisoformat(value)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return int(at.timestamp() * SECOND)
    except (ValueError, OverflowError) as e:
        raise click.BadParameter(f"{value!r} is not a time ({e}): write 2026-11-18 or 2026-11-18T07:00+01:00") from None


_name = click.argument("name", shell_complete=complete_schedules)


@click.group(short_help="Add, list, explain, pause, trigger and backfill schedules.")
def schedules() -> None:
    """Add, list, explain, pause, resume, trigger, preview, backfill and remove schedules.

    A schedule submits a task or a declared flow at certain times. A process with a janitor fires it: a worker,
    `onetray serve` or `onetray up`. Schedules in the code of an app are registered by its workers.
    """


@schedules.command(short_help="Add a schedule.")
@click.argument("name")
@click.option("--kind", metavar="KIND", shell_complete=complete_kinds, help="The kind of task to submit.")
@click.option("--flow", metavar="FLOW", shell_complete=complete_flows, help="The declared flow to submit.")
@click.option("--cron", metavar="EXPRESSION", help="When: '0 7 * * mon-fri', or @daily.")
@click.option("--every", "every_s", metavar="AGE", type=age, help="In place of --cron, how often: 90s, 15m, 2h, 3d.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Of --cron: Europe/Berlin.")
@click.option("--payload", type=json_value, metavar="JSON", help="The task's arguments, or the flow's config.")
@click.option("--queue", default="default", show_default=True, shell_complete=complete_queues, help="Of the task.")
@click.option("--priority", type=int, default=0, help="Higher runs sooner.")
@click.option("--max-attempts", type=click.IntRange(1), help="How often the task is tried.")
@click.option("--label", "labels", metavar="NAME=VALUE", type=label, multiple=True, help="A label. May be repeated.")
@click.option(
    "--catch-up", type=click.Choice(["skip", "last", "all"]), default="last", show_default=True,
    help="What to do with fire times that were missed.",
)  # fmt: skip
@click.option(
    "--catch-up-window", "catch_up_s", metavar="AGE", type=age, default="1d", show_default=True,
    help="Skip missed fire times that are older than this.",
)  # fmt: skip
@click.option(
    "--overlap", type=click.Choice(["allow", "skip", "queue_one", "cancel_running"]), default="allow",
    show_default=True, help="What to do while an earlier job is open.",
)  # fmt: skip
@click.option("--jitter", "jitter_s", metavar="AGE", type=age, default="0s", help="Delay each fire by up to this.")
@click.option("--starts", "starts_at", metavar="TIME", type=time_value, help="The first possible fire time.")
@click.option("--ends", "ends_at", metavar="TIME", type=time_value, help="The last possible fire time.")
@click.option(
    "--pause-after", "pause_after_failures", type=click.IntRange(1, 1_000), metavar="NUMBER",
    help="Pause it after this many failed jobs in a row.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Change the schedule if there is one of this name.")
@reason_option
@common
def add(
    name: str, labels: tuple[tuple[str, str], ...], replace: bool, database: str, namespace: str, as_json: bool,
    **fields: Any,
) -> None:  # fmt: skip
    """Add the schedule NAME: of a task (--kind) or a declared flow (--flow), by the calendar (--cron) or by intervals
    (--every)."""
    with opened(database) as engine:
        if not replace and _exists(engine, name, namespace):
            raise BadInput(f"there is a schedule {name!r} already: to change it, pass --replace")
        by = acting_user()["actor_name"]
        added = engine.put_schedule(name, labels=dict(labels) or None, by=by, namespace=namespace, **fields)
        now = engine.now()
    if as_json:
        print_json(added)
        return
    click.echo(f"schedule {name} fires next {moment(added.next_fire_at, now)}")


def _exists(engine: Any, name: str, namespace: str) -> bool:
    try:
        engine.schedule(name, namespace=namespace)
    except NotFound:
        return False
    return True


@schedules.command("list", short_help="List the schedules.")
@limit_option
@common
def list_(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the schedules by name, with their next and last fire time."""
    with opened(database) as engine:
        listed, now = engine.schedules(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json_list("schedules", listed, limit)
        return
    print_table(
        ("schedule", "state", "when", "submits", "next", "last", "outcome", "job", "why"),
        [
            (
                s.name, s.state, s.when, s.kind or f"flow {s.flow}", moment(s.next_fire_at, now),
                moment(s.last_fire_at, now), s.last_outcome or "", s.last_job_state or "", s.paused_why or "",
            )
            for s in listed
        ],
        empty=f"there are no schedules in the namespace {namespace}: add one with `onetray schedules add`",
    )  # fmt: skip


@schedules.command(short_help="Show a schedule.")
@_name
@common
def show(name: str, database: str, namespace: str, as_json: bool) -> None:
    """Show the schedule NAME with all its fields, and its last fire times."""
    with opened(database) as engine:
        schedule, now = engine.schedule(name, namespace=namespace), engine.now()
        last = engine.schedule_fires(name, namespace=namespace)
    if as_json:
        print_json({"schedule": schedule, "last": last})
        return
    print_facts(_facts(schedule, now))
    _print_fires(last, now)


def _facts(s: Schedule, now: int) -> list[tuple[str, Any]]:
    import json

    paused = None if s.paused_at is None else f"{moment(s.paused_at, now)} by {s.paused_by}"
    return [
        ("schedule", s.name), ("namespace", s.namespace), ("state", s.state), ("when", s.when),
        ("kind", s.kind), ("flow", s.flow), ("queue", s.queue if s.kind else None),
        ("payload", None if s.payload is None else json.dumps(s.payload, ensure_ascii=False)),
        ("priority", s.priority or None), ("max attempts", s.max_attempts),
        ("labels", ", ".join(f"{name}={value}" for name, value in s.labels.items()) or None),
        ("catch up", f"{s.catch_up}, within {duration(int(s.catch_up_s * SECOND))}"), ("overlap", s.overlap),
        ("jitter", f"up to {s.jitter_s:g} s" if s.jitter_s else None), ("starts", moment(s.starts_at, now) or None),
        ("ends", moment(s.ends_at, now) or None), ("pauses after", _failures(s.pause_after_failures)),
        ("source", s.source if s.app is None else f"the code of the app {s.app}"),
        ("seen in code", moment(s.seen_in_code_at, now) or None),
        ("orphaned", moment(s.orphaned_at, now) or None), ("paused", paused), ("why", s.paused_why),
        ("created", f"{moment(s.created_at, now)} by {s.created_by}"), ("next", moment(s.next_fire_at, now) or None),
        ("fire times so far", f"{s.fires:,}"), ("failures in a row", s.failures_in_row or None),
    ]  # fmt: skip


def _failures(number: int | None) -> str | None:
    return None if number is None else counted(number, "failure") + " in a row"


def _print_fires(last: Sequence[ScheduledFire], now: int) -> None:
    print_table(
        ("fire time", "outcome", "job", "state", "by", "why"),
        [
            (
                moment(fire.fire_at, now), f"{fire.outcome} x{fire.missed + 1}" if fire.missed else fire.outcome,
                fire.job or "", fire.job_state or "", fire.by, fire.why or "",
            )
            for fire in last
        ],
        empty="it has not fired yet",
    )  # fmt: skip


@schedules.command(short_help="Say why a schedule fires or does not.")
@_name
@common
def explain(name: str, database: str, namespace: str, as_json: bool) -> None:
    """Say why the schedule NAME fires or does not, its next fire times, and what happened to the last ten."""
    with opened(database) as engine:
        explained, now = engine.explain_schedule(name, namespace=namespace), engine.now()
    if as_json:
        print_json(explained)
        return
    for reason in explained.reasons:
        click.echo(reason)
    if explained.upcoming:
        _print_times(explained.upcoming, now)
    _print_fires(explained.last, now)


@schedules.command(short_help="Print the next fire times.")
@click.argument("name", required=False, shell_complete=complete_schedules)
@click.option("--cron", metavar="EXPRESSION", help="Of this expression, instead of a schedule.")
@click.option("--every", "every_s", metavar="AGE", type=age, help="At this interval, instead of a schedule.")
@click.option("--timezone", metavar="ZONE", default="UTC", show_default=True, help="Of --cron.")
@click.option("--from", "since", metavar="TIME", type=time_value, help="After this time instead of now.")
@click.option("--count", "limit", type=click.IntRange(1, 100), default=10, show_default=True, help="How many.")
@common
def preview(name: str | None, database: str, namespace: str, as_json: bool, **fields: Any) -> None:
    """Print the next fire times of the schedule NAME, or of an expression, in its time zone.

    The notes mark times that a change of the clock moves, and times that exist twice.
    """
    with opened(database) as engine:
        times, now = engine.preview_schedule(name, namespace=namespace, **fields), engine.now()
    if as_json:
        print_json_list("times", times)
        return
    _print_times(times, now)


def _print_times(times: Sequence[FireTime], now: int) -> None:
    print_table(
        ("fires", "local time", "note"),
        [(moment(time.fire_at, now), time.local, NOTES.get(time.note or "", "")) for time in times],
        empty="it does not fire",
    )


@schedules.command(short_help="Stop a schedule.")
@_name
@reason_option
@common
def pause(name: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Stop the schedule NAME: it does not fire until it is resumed. Its jobs continue."""
    with opened(database) as engine:
        paused = engine.pause_schedule(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    print_json(paused) if as_json else click.echo(f"schedule {name} is paused")


@schedules.command(short_help="Resume a paused schedule.")
@_name
@reason_option
@common
def resume(name: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Let the schedule NAME fire again, from now on. For the fire times of the pause: `onetray schedules backfill`."""
    with opened(database) as engine:
        resumed = engine.resume_schedule(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
        now = engine.now()
    if as_json:
        print_json(resumed)
        return
    click.echo(f"schedule {name} fires next {moment(resumed.next_fire_at, now) or 'never: it has ended'}")


@schedules.command(short_help="Submit a schedule's job now.")
@_name
@reason_option
@common
def trigger(name: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Submit the job of the schedule NAME now, beside its fire times. It works while the schedule is paused, too."""
    with opened(database) as engine:
        fire = engine.trigger_schedule(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    if as_json:
        print_json(fire)
        return
    click.echo(f"submitted {fire.job}" if fire.job else f"refused: {fire.why}")


@schedules.command(short_help="Submit fire times that were missed.")
@_name
@click.option("--from", "since", metavar="TIME", type=time_value, required=True, help="2026-11-18T07:00+01:00")
@click.option("--to", "until", metavar="TIME", type=time_value, required=True, help="Up to this time.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="At most so many.")
@click.option("--preview", is_flag=True, help="Only list them.")
@yes_option
@reason_option
@common
def backfill(
    name: str, preview: bool, yes: bool, reason: str | None, database: str, namespace: str, as_json: bool,
    **fields: Any,
) -> None:  # fmt: skip
    """Submit the fire times of the schedule NAME in a range that have no job yet, each once."""
    with opened(database) as engine:
        found = engine.backfill_schedule(name, preview=True, namespace=namespace, **fields)
        if not preview and found.times:
            confirm(f"Submit {counted(len(found.times), 'job')} of the schedule {name}?", yes)
            by = acting_user()["actor_name"]
            found = engine.backfill_schedule(name, reason=reason, by=by, namespace=namespace, **fields)
        now = engine.now()
    if as_json:
        print_json(found)
        return
    if preview or not found.times:
        _print_times(found.times, now) if found.times else click.echo("no fire time in this range lacks a job")
    else:
        refused = f", {found.refused:,} refused" if found.refused else ""
        click.echo(f"submitted {counted(found.submitted, 'job')}{refused}")
    if found.more:
        click.echo("There are more in this range: run it again, or pass a higher --limit.", err=True)


@schedules.command(short_help="Delete a schedule.")
@_name
@yes_option
@reason_option
@common
def remove(name: str, yes: bool, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Delete the schedule NAME and its history. Its jobs stay. An app that still has it in its code adds it again."""
    with opened(database) as engine:
        engine.schedule(name, namespace=namespace)
        confirm(f"Delete the schedule {name} and its history?", yes)
        engine.remove_schedule(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    print_json({"schedule": name, "removed": True}) if as_json else click.echo(f"schedule {name} is removed")
