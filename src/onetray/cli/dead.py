"""`onetray dead`: list dead letters and redrive them.

Owns which letters a bulk redrive includes. The engine carries out each redrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import CHECK_FAILED, Absent
from onetray.cli.bulk import print_started
from onetray.cli.completion import complete_dead, complete_kinds
from onetray.cli.format import age, counted, moment
from onetray.cli.jobs.act import print_result
from onetray.cli.options import acting_user, common, confirm, limit_option, opened, yes_option
from onetray.cli.output import jsonable, print_json, print_json_list, progress_bar
from onetray.cli.show import Facts, as_text, error_facts
from onetray.cli.tables import print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.listing import DeadGroup, DeadLetterSummary
    from onetray.engine.api import EngineApi

PAGE = 500


@click.group(short_help="List dead letters and redrive them.")
def dead() -> None:
    """List dead letters (tasks that used up their attempts) and run them again."""


def _filters(command: Any) -> Any:
    for option in (
        click.option("--error", metavar="TEXT", help='Only letters whose "Class: message" contains this.'),
        click.option("--reason", metavar="CODE", help="Only letters with this reason code."),
        click.option("--kind", shell_complete=complete_kinds, help="Only letters of this kind of task."),
    ):
        command = option(command)
    return command


@dead.command("list", short_help="List dead letters, in groups.")
@_filters
@click.option("--redriven", is_flag=True, help="Include letters that were redriven.")
@click.option("--each", is_flag=True, help="List single letters, oldest first, instead of groups.")
@limit_option
@common
def list_(
    kind: str | None,
    reason: str | None,
    error: str | None,
    redriven: bool,
    each: bool,
    limit: int,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """List dead letters, grouped by kind, reason and error, the largest group first."""
    with opened(database) as engine:
        filters: dict[str, Any] = {"kind": kind, "reason": reason, "error": error, "redriven": redriven}
        read, now = engine.dead_lines if each else engine.dead_groups, engine.now()
        rows: list[Any] = read(**filters, limit=limit, namespace=namespace)
    if as_json:
        print_json_list("dead_letters" if each else "groups", rows, limit)
    elif each:
        _print_letters(rows, now)
    else:
        _print_groups(rows, now)


def _print_groups(groups: list[Any], now: int) -> None:
    print_table(
        ("count", "kind", "reason", "error", "oldest", "newest"),
        [
            (f"{g.count:,}", g.kind, g.reason_code, _error(g), moment(g.oldest_at, now), moment(g.newest_at, now))
            for g in groups
        ],
    )


def _print_letters(letters: list[Any], now: int) -> None:
    print_table(
        ("id", "kind", "reason", "error", "set aside", "redriven as"),
        [(x.id, x.kind, x.reason_code, _error(x), moment(x.created_at, now), x.successor_id) for x in letters],
    )


def _error(letter: DeadGroup | DeadLetterSummary) -> str:
    return f"{letter.error_class or 'Error'}: {letter.message or ''}"


@dead.command(short_help="Show one dead letter.")
@click.argument("id", shell_complete=complete_dead)
@common
def show(id: str, database: str, namespace: str, as_json: bool) -> None:
    """Show a dead letter: why the task was set aside, its last error and its payload."""
    with opened(database) as engine:
        located, now = engine.locate(id, among=("task",), namespace=namespace), engine.now()
        letters = engine.dead_letters(located.id, namespace=namespace)
        if not letters:
            state = engine.task(located.id, namespace=namespace).state
            raise Absent(f"the task {located.id} is {state} and has no dead letter")
        letter, task = letters[0], engine.task(located.id, namespace=namespace)
    if as_json:
        print_json({**jsonable(letter), "kind": task.kind, "payload": task.payload})
        return
    facts: Facts = [
        ("task", letter.task_id), ("kind", task.kind), ("reason", letter.reason_code), ("at", letter.stage),
        *error_facts(letter.last_error), ("attempts", letter.attempts),
        ("set aside", moment(letter.created_at, now)), ("last worker", letter.last_owner),
        ("its lease", moment(letter.last_lease_expires_at, now)), ("correlation", letter.correlation_id),
        ("trace", letter.trace_id), ("payload", as_text(task.payload)), ("payload hash", letter.payload_hash),
        ("redriven as", letter.successor_id),
    ]  # fmt: skip
    print_facts(facts)


@dead.command(short_help="Run dead letters again.")
@click.argument("id", required=False, shell_complete=complete_dead)
@_filters
@click.option("--all", "all_", is_flag=True, help="Every letter that matches the filters; without filters, every one.")
@click.option("--delay", metavar="AGE", type=age, default=0.0, help="Run no sooner than after this time: 90s, 15m, 2h.")
@click.option("--keep-attempts", is_flag=True, help="Count the attempts so far against the budget of the new task.")
@click.option("--background", is_flag=True, help="With --all: let the janitors do it, and return. See `onetray bulk`.")
@click.option(
    "--canary",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="With --all: redrive N in the background, then pause. See how they do: `onetray bulk show`.",
)
@yes_option
@common
@click.pass_context
def redrive(
    ctx: click.Context,
    id: str | None,
    kind: str | None,
    reason: str | None,
    error: str | None,
    all_: bool,
    delay: float,
    keep_attempts: bool,
    background: bool,
    canary: int | None,
    yes: bool,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Run the dead letter with this ID again, or with --all every one that matches the filters.

    Each becomes a new task that is linked to the old one. With --all it first lists the letters in groups, and asks.
    Letters of flows that have ended are skipped then: retry those flows instead. With an ID, the letter of a flow that
    has ended runs in a new flow, to which what has succeeded of its stage is carried over.
    """
    options: dict[str, Any] = {"delay_s": delay, "keep_attempts": keep_attempts, **acting_user()}
    filters: dict[str, Any] = {"kind": kind, "reason": reason, "error": error}
    if (id is None) != all_ or (id is not None and any(filters.values())):
        raise click.UsageError("pass one ID, or --all with any of --kind, --reason and --error")
    if not all_ and (background or canary is not None):
        raise click.UsageError("--background and --canary need --all: an ID names one letter")
    with opened(database) as engine:
        if id is not None:
            located = engine.locate(id, among=("task",), namespace=namespace)
            print_result(engine.redrive(located.id, namespace=namespace, **options), as_json, new=True)
            return
        groups = engine.dead_groups(**filters, limit=1_000, namespace=namespace)
        if groups and not yes and not as_json:
            _print_groups(groups, engine.now())
        total = sum(g.count for g in groups)
        if not total and not as_json:
            click.echo("no dead letter matches")
            return
        if total:
            confirm(f"Redrive {counted(total, 'dead letter')}?", yes)
        if background or canary is not None:
            started = engine.start_bulk(
                "redrive", {name: value for name, value in filters.items() if value is not None}, delay_s=delay,
                keep_attempts=keep_attempts, canary=canary, by=options["actor_name"], namespace=namespace,
            )  # fmt: skip
            print_started(started, as_json)
            return
        with progress_bar("redriving", total) as step:
            outcome = _redrive_all(engine, filters, namespace, options, step)
    _print_outcome(outcome, as_json)
    if outcome.refused:
        ctx.exit(CHECK_FAILED)


@dataclass(slots=True)
class Outcome:
    redriven: int = 0
    refused: list[str] = field(default_factory=list)
    left: int = 0
    flows: set[str] = field(default_factory=set)


def _redrive_all(
    engine: EngineApi, filters: dict[str, Any], namespace: str, options: dict[str, Any], step: Callable[[int], None]
) -> Outcome:
    from onetray.domain.bulk import BulkOptions, belongs_to_ended_flow, redrive_command

    how = BulkOptions(delay_s=options.pop("delay_s"), keep_attempts=options.pop("keep_attempts"))
    outcome = Outcome()
    for page in _pages(engine, filters, namespace):
        of_ended_flows = [letter for letter in page if belongs_to_ended_flow(letter)]
        outcome.left += len(of_ended_flows)
        outcome.flows |= {letter.flow_id for letter in of_ended_flows if letter.flow_id is not None}
        letters = [letter for letter in page if not belongs_to_ended_flow(letter)]
        commands = [redrive_command(letter, how, namespace=namespace, **options) for letter in letters]
        for letter, verdict in zip(letters, engine.run(commands), strict=True):
            if verdict.error is None:
                outcome.redriven += 1
            else:
                outcome.refused.append(f"{letter.id}: {verdict.error}")
        step(len(page))
    return outcome


def _pages(engine: EngineApi, filters: dict[str, Any], namespace: str) -> Iterator[list[DeadLetterSummary]]:
    """All letters, ordered by key, so that a task that is dead-lettered again meanwhile is not redriven twice."""
    after = 0
    while page := engine.dead_lines(**filters, after=after, limit=PAGE, namespace=namespace):
        after = page[-1].key
        yield page


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    flows = sorted(outcome.flows)
    if as_json:
        print_json(
            {"redriven": outcome.redriven, "refused": outcome.refused, "left": outcome.left, "flows_to_retry": flows}
        )
        return
    click.echo(f"redriven: {outcome.redriven:,}, refused: {len(outcome.refused):,}, skipped: {outcome.left:,}")
    for refusal in outcome.refused[:20]:
        click.echo(f"refused {refusal}", err=True)
    if flows:
        click.echo(
            f"Skipped letters belong to {counted(len(flows), 'ended flow')}. Retry each: onetray jobs retry {flows[0]}"
        )
