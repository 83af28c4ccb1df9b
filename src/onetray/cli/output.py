"""How commands print: text for people through rich, JSON for programs, a bar for long work.

Owns the console. rich is loaded when there is text to lay out or to colour; it leaves colour out when the output is
not a terminal or NO_COLOR is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 1_000_000
"""Piped text is never cut."""
_TIMES = ("ts", "run_at")


def print_json(value: Any) -> None:
    import json

    click.echo(json.dumps(jsonable(value), indent=2, default=str, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One value to a line, for what comes bit by bit."""
    import json

    click.echo(json.dumps(jsonable(value), default=str, ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """Entities as JSON: fields by their names, times in UTC. What users wrote (payload, result, …) stays as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(f.name, getattr(value, f.name)) for f in fields(value)]
        actions = {"actions": list(value.actions)} if hasattr(value, "actions") else {}
        return {name: _field(name, v) for name, v in pairs if name not in ("key", "actor")} | actions
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _field(name, v) for name, v in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, dict):
        return {name: jsonable(v) for name, v in value.items()}
    return value


def _field(name: str, value: Any) -> Any:
    if type(value) is int and (name.endswith("_at") or name in _TIMES):
        from onetray.cli.format import iso_utc

        return iso_utc(value)
    return jsonable(value) if is_dataclass(value) or isinstance(value, tuple | list) else value


def width() -> int:
    """How many columns there are to fill."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return console().width
    return WIDE


def console() -> Console:
    """Where people read. Piped text is not wrapped: a line stays a line for grep."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 1000
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Plain(width=wide, color_system=colours, highlight=False, markup=False, emoji=False)


@contextmanager
def progress_bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for long work; nothing where nobody looks. Gives a function that is told of each step."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def bar(words: str) -> Iterator[Callable[[float, float | None, str], None]]:
    """A bar on stderr for something that says itself how far it is; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda done, total, message: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(words, total=None)
        yield lambda done, total, message: drawn.update(
            task, completed=done, total=total, description=f"{words} {message}".strip()
        )
