"""`onetray jobs events` and `logs`: print a job's events or log lines; with -f, until the job has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import Refused
from onetray.cli.completion import complete_jobs
from onetray.cli.format import clock
from onetray.cli.options import common, opened
from onetray.cli.output import print_json_line
from onetray.cli.show import as_text
from onetray.cli.tables import one_line

if TYPE_CHECKING:
    from onetray.domain.listing import Located
    from onetray.domain.task import Event, LogLine
    from onetray.engine.api import EngineApi

PAGE = 500
SECOND = 1_000_000

follow_option = click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")


@click.command(short_help="Print a job's events.")
@click.argument("id", shell_complete=complete_jobs)
@follow_option
@common
def events(id: str, follow: bool, database: str, namespace: str, as_json: bool) -> None:
    """Print the events of a job in order, one on each line; those of a flow include its stages and tasks."""
    with opened(database) as engine:
        located = engine.locate(id, among=("task", "flow"), namespace=namespace)
        read = engine.events if located.entity == "task" else engine.flow_events
        _print_all(
            engine,
            lambda after: read(located.id, namespace=namespace, after=after, limit=PAGE),
            lambda e: e.id,
            print_json_line if as_json else _event_line,
            lambda: not follow or _ended(engine, located, namespace),
        )


@click.command(short_help="Print a task's log.")
@click.argument("id", shell_complete=complete_jobs)
@follow_option
@common
def logs(id: str, follow: bool, database: str, namespace: str, as_json: bool) -> None:
    """Print the log lines of a task's handler."""
    with opened(database) as engine:
        located = engine.locate(id, among=("task", "flow"), namespace=namespace)
        if located.entity == "flow":
            raise Refused("a flow has no log of its own: pass the id of one of its tasks, see `onetray tasks list`")
        _print_all(
            engine,
            lambda after: engine.logs(located.id, namespace=namespace, after=after, limit=PAGE),
            lambda line: line.cursor,
            print_json_line if as_json else _log_line,
            lambda: not follow or _ended(engine, located, namespace),
        )


def _print_all(
    engine: EngineApi,
    read: Callable[[int], Sequence[Any]],
    cursor: Callable[[Any], int],
    print_item: Callable[[Any], None],
    is_over: Callable[[], bool],
) -> None:
    after = 0
    while True:
        seen = engine.wake.generation
        # Checked before reading, so that the last pass prints everything up to the end.
        is_last = is_over()
        while page := read(after):
            for item in page:
                print_item(item)
            after = cursor(page[-1])
        if is_last:
            return
        engine.wake.wait(seen, engine.wake.poll_s)


def _ended(engine: EngineApi, located: Located, namespace: str) -> bool:
    from onetray.domain.lifecycle import MACHINES

    return engine.job_status(located.id, namespace=namespace).state in MACHINES[located.entity].terminal


def _event_line(e: Event) -> None:
    change = f"{e.was or '(new)'} → {e.state}" if e.state else "note"
    cause = f"  {e.cause}" if e.cause else ""
    click.echo(one_line(f"{_precise(e.ts)}  {e.type:<20} {change:<24} {e.actor:<20} {e.entity_id}{cause}"))


def _log_line(line: LogLine) -> None:
    data = f"  {as_text(line.data)}" if line.data is not None else ""
    click.echo(f"{_precise(line.ts)}  {line.attempt}  {line.level:<8}{one_line(line.line)}{data}")


def _precise(at: int) -> str:
    return f"{clock(at)}.{at % SECOND // 1000:03d}"
