"""`onetray jobs watch`, `events` and `logs`: follow a job's progress, events or log lines until it has ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import CHECK_FAILED, Refused
from onetray.cli.completion import complete_jobs
from onetray.cli.format import age, precise_clock
from onetray.cli.options import common, opened
from onetray.cli.output import json_line, jsonable, print_json_line, width
from onetray.cli.show import as_text, progress_text
from onetray.cli.tables import one_line

if TYPE_CHECKING:
    from onetray.domain.flow import Progress
    from onetray.domain.listing import Located
    from onetray.domain.task import Event, LogLine
    from onetray.engine.api import EngineApi

PAGE = 500
SECOND = 1_000_000

follow_option = click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")


@click.command(short_help="Watch a job's progress until it has ended.")
@click.argument("id")
@click.option("--timeout", metavar="AGE", type=age, help="The longest time to wait: 90s, 15m, 2h.")
@common
def watch(id: str, timeout: float | None, database: str, namespace: str, as_json: bool) -> None:
    """Show the state and the progress of a job until it has ended.

    On a terminal it updates one line. Otherwise it prints a line for each change; with --json, a line of JSON.

    Exits with 0 if the job succeeded, fully or partly, and with 1 otherwise.
    """
    from onetray.domain.lifecycle import PARTIAL, SUCCEEDED

    with opened(database) as engine:
        located = engine.locate(id, among=("task", "flow"), namespace=namespace)
        if not as_json:
            click.echo(f"{located.entity} {located.id}")
        one_line_changes = not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        with _changing_line() if one_line_changes else nullcontext(click.echo) as print_line:
            draw = _json_of_progress(located) if as_json else _text_of_progress
            state = _watch(engine, located, namespace, timeout, draw, print_line)
    if state not in (SUCCEEDED, PARTIAL):
        click.get_current_context().exit(CHECK_FAILED)


def _watch(
    engine: EngineApi,
    located: Located,
    namespace: str,
    timeout_s: float | None,
    draw: Callable[[Progress], str],
    print_line: Callable[[str], None],
) -> str:
    """Print each change of the progress. Returns the job's final state."""
    from onetray.domain.lifecycle import MACHINES

    read = engine.progress if located.entity == "flow" else engine.task_progress
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    last = None
    while True:
        seen = engine.wake.generation
        progress = read(located.id, namespace=namespace)
        if (line := draw(progress)) != last:
            print_line(line)
            last = line
        if progress.state in MACHINES[located.entity].terminal:
            return progress.state
        left = engine.wake.poll_s if deadline is None else min(engine.wake.poll_s, deadline - time.monotonic())
        if left <= 0:
            raise click.ClickException(
                f"the job is still {progress.state} after {timeout_s:g} s: see `onetray jobs explain {located.id}`"
            )
        engine.wake.wait(seen, left)


def _text_of_progress(p: Progress) -> str:
    return one_line(f"{p.state}  {progress_text(p)}")


def _json_of_progress(located: Located) -> Callable[[Progress], str]:
    """Progress as a line of JSON. Of the stages only what changes: they may hold large results."""

    def draw(p: Progress) -> str:
        stages = [{"name": s.name, "state": s.state, "percentage": s.percentage} for s in p.stages]
        return json_line({"entity": located.entity, "id": located.id, **jsonable(p), "stages": stages})

    return draw


@contextmanager
def _changing_line() -> Iterator[Callable[[str], None]]:
    """Print each text over the one before it, cut to the width of the terminal."""
    from rich.cells import cell_len, set_cell_size

    def draw(text: str) -> None:
        space = max(width() - 1, 1)
        cut = text if cell_len(text) <= space else f"{set_cell_size(text, space - 1)}…"
        click.echo(f"\r\x1b[K{cut}", nl=False)

    try:
        yield draw
    finally:
        click.echo()


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
            print_json_line if as_json else print_event,
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


def print_event(e: Event) -> None:
    change = f"{e.was or '(new)'} → {e.state}" if e.state else "note"
    cause = f"  {e.cause}" if e.cause else ""
    when = f"{e.id:<7} {precise_clock(e.ts)}"
    click.echo(one_line(f"{when}  {e.type:<20} {change:<24} {e.actor:<20} {subject_of(e)}{cause}"))


def subject_of(e: Event) -> str:
    """The id of a job, a stage or a task; the name of a queue, a limit, a kind or a token."""
    from onetray.domain.lifecycle import AUDIT_TYPES

    if e.type not in AUDIT_TYPES:
        return e.entity_id
    return next((str(e.payload[name]) for name in ("queue", "limit", "kind", "name") if name in e.payload), e.entity_id)


def _log_line(line: LogLine) -> None:
    data = f"  {as_text(line.data)}" if line.data is not None else ""
    click.echo(f"{precise_clock(line.ts)}  {line.attempt}  {line.level:<8}{one_line(line.line)}{data}")
