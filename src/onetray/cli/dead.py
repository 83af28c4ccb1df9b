"""`onetray dead`: see what was set aside, and run it again.

Owns what a bulk redrive takes and what it leaves. A redrive itself is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import FOUND, Absent
from onetray.cli.format import counted, moment
from onetray.cli.jobs.act import print_result
from onetray.cli.options import common, confirm, limit_option, opened, who, yes_option
from onetray.cli.output import jsonable, print_json, progress_bar
from onetray.cli.show import as_text
from onetray.cli.tables import print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.listing import DeadGroup, DeadLetterSummary
    from onetray.engine.api import EngineApi

PAGE = 500


@click.group(short_help="See dead letters, and redrive them.")
def dead() -> None:
    """See dead letters (tasks that were set aside), and run them again."""


def _filters(command: Any) -> Any:
    """Which letters are meant."""
    for option in (
        click.option("--error", metavar="TEXT", help='Only letters whose "Class: message" contains this.'),
        click.option("--reason", metavar="CODE", help="Only letters with this reason code."),
        click.option("--kind", help="Only this kind of task."),
    ):
        command = option(command)
    return command


@dead.command("list", short_help="List dead letters, in groups.")
@_filters
@click.option("--redriven", is_flag=True, help="Also those that were redriven.")
@click.option("--each", is_flag=True, help="One letter to a line, oldest first, instead of groups.")
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
        wanted: dict[str, Any] = {"kind": kind, "reason": reason, "error": error, "redriven": redriven}
        now = engine.now()
        found: list[Any] = (engine.dead_lines if each else engine.dead_groups)(
            **wanted, limit=limit, namespace=namespace
        )
    if as_json:
        print_json(found)
    elif each:
        _print_lines(found, now)
    else:
        _print_groups(found, now)


def _print_groups(groups: list[Any], now: int) -> None:
    print_table(
        ("count", "kind", "reason", "error", "oldest", "newest"),
        [
            (f"{g.count:,}", g.kind, g.reason_code, _error(g), moment(g.oldest_at, now), moment(g.newest_at, now))
            for g in groups
        ],
    )


def _print_lines(lines: list[Any], now: int) -> None:
    print_table(
        ("id", "kind", "reason", "error", "set aside", "redriven as"),
        [(x.id, x.kind, x.reason_code, _error(x), moment(x.created_at, now), x.successor_id) for x in lines],
    )


def _error(letter: DeadGroup | DeadLetterSummary) -> str:
    return f"{letter.error_class or 'Error'}: {letter.message or ''}"


@dead.command(short_help="Show one dead letter.")
@click.argument("id")
@common
def show(id: str, database: str, namespace: str, as_json: bool) -> None:
    """Show all that is known about why a task was set aside."""
    with opened(database) as engine:
        found, now = engine.locate(id, among=("task",), namespace=namespace), engine.now()
        letters = engine.dead_letters(found.id, namespace=namespace)
        if not letters:
            state = engine.task(found.id, namespace=namespace).state
            raise Absent(f"the task {found.id} is {state}: it has no dead letter")
        letter, task = letters[0], engine.task(found.id, namespace=namespace)
    if as_json:
        print_json({**jsonable(letter), "kind": task.kind, "payload": task.payload})
        return
    facts = [
        ("task", letter.task_id), ("kind", task.kind), ("reason", letter.reason_code), ("at", letter.stage),
        ("error", as_text(letter.last_error)), ("attempts", letter.attempts),
        ("set aside", moment(letter.created_at, now)), ("last worker", letter.last_owner),
        ("its lease", moment(letter.last_lease_expires_at, now)), ("correlation", letter.correlation_id),
        ("trace", letter.trace_id), ("payload", as_text(task.payload)), ("payload hash", letter.payload_hash),
        ("redriven as", letter.successor_id),
    ]  # fmt: skip
    print_facts(facts)


@dead.command(short_help="Run dead letters again.")
@click.argument("id", required=False)
@_filters
@click.option("--all", "all_", is_flag=True, help="Every letter that the filters leave; without filters, every one.")
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
    yes: bool,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Run one dead letter again by its ID, or with --all every one that the filters leave.

    Each becomes a new task that names the old one. With --all it says first how many of what it will take, and asks.
    Letters of flows that have ended are left: retry these flows.
    """
    wanted: dict[str, Any] = {"kind": kind, "reason": reason, "error": error}
    if (id is None) != all_ or (id is not None and any(wanted.values())):
        raise click.UsageError("give one ID, or --all with any of --kind, --reason and --error")
    with opened(database) as engine:
        if id is not None:
            found = engine.locate(id, among=("task",), namespace=namespace)
            print_result(engine.redrive(found.id, namespace=namespace, **who()), as_json, new=True)
            return
        groups = engine.dead_groups(**wanted, limit=1_000, namespace=namespace)
        if groups and not yes and not as_json:
            _print_groups(groups, engine.now())
        total = sum(g.count for g in groups)
        if total:
            confirm(f"Redrive {counted(total, 'dead letter')}?", yes)
        with progress_bar("redriving", total) as step:
            outcome = _redrive_all(engine, wanted, namespace, step)
    _tell(outcome, as_json)
    if outcome.refused:
        ctx.exit(FOUND)


@dataclass(slots=True)
class Outcome:
    redriven: int = 0
    refused: list[str] = field(default_factory=list)
    left: int = 0
    flows: set[str] = field(default_factory=set)


def _redrive_all(engine: EngineApi, wanted: dict[str, Any], namespace: str, step: Callable[[int], None]) -> Outcome:
    from onetray.domain.commands import Redrive

    outcome = Outcome()
    for page in _pages(engine, wanted, namespace):
        # Each would retry its whole flow, once for each letter.
        over = [line for line in page if line.flow_finished_at is not None]
        outcome.left += len(over)
        outcome.flows |= {line.flow_id for line in over if line.flow_id is not None}
        alive = [line for line in page if line.flow_finished_at is None]
        commands = [Redrive(task=x.id, namespace=namespace, actor_name=who()["actor_name"]) for x in alive]
        for line, verdict in zip(alive, engine.run(commands), strict=True):
            if verdict.error is None:
                outcome.redriven += 1
            else:
                outcome.refused.append(f"{line.id}: {verdict.error}")
        step(len(page))
    return outcome


def _pages(engine: EngineApi, wanted: dict[str, Any], namespace: str) -> Iterator[list[DeadLetterSummary]]:
    """All letters that are there, by key: one that is set aside again meanwhile is not met twice."""
    after = 0
    while page := engine.dead_lines(**wanted, after=after, limit=PAGE, namespace=namespace):
        after = page[-1].key
        yield page


def _tell(outcome: Outcome, as_json: bool) -> None:
    flows = sorted(outcome.flows)
    if as_json:
        print_json(
            {"redriven": outcome.redriven, "refused": outcome.refused, "left": outcome.left, "flows_to_retry": flows}
        )
        return
    click.echo(f"redriven: {outcome.redriven:,}, refused: {len(outcome.refused):,}, left: {outcome.left:,}")
    for refusal in outcome.refused[:20]:
        click.echo(f"refused {refusal}", err=True)
    if flows:
        click.echo(
            f"Left are those of {counted(len(flows), 'flow')} that ended. Retry each: onetray jobs retry {flows[0]}"
        )
