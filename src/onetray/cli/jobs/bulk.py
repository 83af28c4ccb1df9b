"""`onetray jobs cancel --all`, `retry --all` and `priority --all`: one command on every job that matches the filters.

Owns the preview, the batches and the counts. The engine decides about each job. With --background the engine's janitors
carry it out: see `onetray bulk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import CHECK_FAILED, INTERRUPTED
from onetray.cli.format import counted
from onetray.cli.jobs.filters import filter_options, filters_of, is_filtered
from onetray.cli.jobs.reads import print_jobs
from onetray.cli.options import confirm, yes_option
from onetray.cli.output import print_json, progress_bar

if TYPE_CHECKING:
    from onetray.domain.bulk import BulkOptions
    from onetray.domain.listing import JobSummary
    from onetray.engine.api import EngineApi

Function = TypeVar("Function", bound=Callable[..., Any])

BATCH = 500
PREVIEW = 10
REFUSALS = 20


def bulk_options(command: Function) -> Function:
    """--all with the filters of `jobs list`, --dry-run, --background and --yes."""
    command = yes_option(command)
    command = click.option(
        "--background", is_flag=True, help="With --all: let the janitors do it, and return. See `onetray bulk`."
    )(command)
    command = click.option("--dry-run", is_flag=True, help="With --all: change nothing, print what matches.")(command)
    command = filter_options(command)
    return click.option("--all", "all_", is_flag=True, help="Every job that matches the filters, instead of one.")(
        command
    )


def check_selection(id_: str | None, all_: bool, options: dict[str, Any]) -> None:
    """Raise UsageError unless the command names one job, or passes --all."""
    if (id_ is None) != all_:
        raise click.UsageError("pass the ID of one job, or --all with any of the filters of `onetray jobs list`")
    if not all_ and (is_filtered(options) or options["dry_run"] or options["background"]):
        raise click.UsageError("filters, --dry-run and --background need --all: an ID names one job")


@dataclass(frozen=True, slots=True)
class Bulk:
    """What to do with the matching jobs."""

    action: str
    """An action of domain/bulk.py."""
    verb: str
    doing: str
    options: BulkOptions
    fields: dict[str, Any]
    """The fields that all commands have: namespace, actor and cause."""

    @property
    def once(self) -> bool:
        """Whether to leave out jobs that were retried before."""
        return self.action == "retry"

    def start(self, engine: EngineApi, filters: dict[str, Any]) -> None:
        """Start it in the background."""
        from onetray.cli.bulk import print_started

        options = self.options
        started = engine.start_bulk(
            self.action, filters, priority=options.priority, hard=options.hard, reason=self.fields["cause"],
            by=self.fields["actor_name"], namespace=self.fields["namespace"],
        )  # fmt: skip
        print_started(started, click.get_current_context().params["as_json"])


@dataclass(slots=True)
class Outcome:
    done: int = 0
    repeated: int = 0
    """Jobs that an earlier run had already handled."""
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def seen(self) -> int:
        return self.done + self.repeated + len(self.refused)


def run_bulk(engine: EngineApi, bulk: Bulk, options: dict[str, Any], namespace: str, as_json: bool) -> None:
    """Show what matches, ask, and run the command on each job. Exits with 1 if some were refused."""
    from onetray.domain.bulk import DEFAULT_STATES

    ctx, now = click.get_current_context(), engine.now()
    # Jobs that are submitted from now on are not meant: the retried ones among them.
    filters = filters_of(options, now, namespace)
    filters["states"] = filters["states"] or DEFAULT_STATES[bulk.action]
    filters["until"] = now + 1 if filters["until"] is None else filters["until"]
    first = engine.jobs(**filters, limit=PREVIEW, total=True)
    total = first.total or 0
    if options["dry_run"] or not total:
        _print_preview(bulk, first.jobs, total, now, as_json, options["dry_run"])
        return
    if not options["yes"]:
        if not as_json:
            print_jobs(first.jobs, now)
        left_out = "; those that were retried before are left out" if bulk.once else ""
        confirm(f"{bulk.verb.capitalize()} {counted(total, 'job')}{left_out}?", False)
    if options["background"]:
        bulk.start(engine, {name: value for name, value in filters.items() if name != "namespace" and value})
        return
    outcome, interrupted = Outcome(), False
    try:
        with progress_bar(bulk.doing, total) as step:
            for page in _pages(engine, filters):
                _run_page(engine, bulk, page, outcome)
                step(len(page))
    except KeyboardInterrupt:
        interrupted = True
    _print_outcome(bulk, outcome, total, as_json, interrupted)
    if interrupted or outcome.refused:
        ctx.exit(INTERRUPTED if interrupted else CHECK_FAILED)


def _pages(engine: EngineApi, filters: dict[str, Any]) -> Iterator[list[JobSummary]]:
    """The matching jobs in batches. The cursor only goes down: a job that changes meanwhile is not met twice."""
    before: int | None = None
    while True:
        page = engine.jobs(**filters, before=before, limit=BATCH)
        if page.jobs:
            yield page.jobs
        if page.before is None:
            return
        before = page.before


def _run_page(engine: EngineApi, bulk: Bulk, jobs: list[JobSummary], outcome: Outcome) -> None:
    from onetray.domain.bulk import command_for

    if bulk.once:
        before = set(engine.retried([job.id for job in jobs], namespace=jobs[0].namespace))
        jobs = [job for job in jobs if job.id not in before]
        outcome.repeated += len(before)
    commands = [command_for(bulk.action, job, bulk.options, **bulk.fields) for job in jobs]
    for job, verdict in zip(jobs, engine.run(commands), strict=True):
        if verdict.error is not None:
            outcome.refused.append((job.id, str(verdict.error)))
        elif getattr(verdict.value, "repeated", False):
            outcome.repeated += 1
        else:
            outcome.done += 1


def _print_preview(bulk: Bulk, jobs: list[JobSummary], total: int, now: int, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json({"action": bulk.verb, "matched": total, "dry_run": dry_run, **_counts(Outcome()), "first": jobs})
        return
    if jobs:
        print_jobs(jobs, now)
    click.echo(f"would {bulk.verb} {counted(total, 'job')}" if total else "no job matches")


def _print_outcome(bulk: Bulk, outcome: Outcome, total: int, as_json: bool, interrupted: bool) -> None:
    if as_json:
        print_json({"action": bulk.verb, "matched": total, "dry_run": False, **_counts(outcome)})
    else:
        click.echo(
            f"{bulk.verb}: done {outcome.done:,}, repeated {outcome.repeated:,}, refused {len(outcome.refused):,}"
        )
        for id_, why in outcome.refused[:REFUSALS]:
            click.echo(f"refused {id_}: {why}", err=True)
    if interrupted:
        left = f"interrupted after {outcome.seen:,} of {total:,} jobs"
        click.echo(f"onetray: {left}: run the same command again for the rest", err=True)


def _counts(outcome: Outcome) -> dict[str, Any]:
    refused = [{"id": id_, "error": why} for id_, why in outcome.refused]
    return {"done": outcome.done, "repeated": outcome.repeated, "refused": refused}


__all__ = ["Bulk", "bulk_options", "check_selection", "run_bulk"]
