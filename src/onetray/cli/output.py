"""Output of commands: text through rich, JSON for programs, progress bars.

rich is imported only for text that needs layout or colour. There is no colour if the output is not a terminal or
NO_COLOR is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 1_000_000
"""The width of piped output, which is never cut."""
_TIMES = ("ts", "at", "run_at")


def print_json(value: Any) -> None:
    import json

    click.echo(json.dumps(jsonable(value), indent=2, default=str, ensure_ascii=False))


def print_json_list(
    name: str, items: Sequence[Any], limit: int | None = None, next_: str | None = None, **others: Any
) -> None:
    """Print a list in the form that all lists have: the items under their name, whether there may be more of them, and
    in `next` the last id if a next page can start after it."""
    more = next_ is not None or (limit is not None and len(items) >= limit)
    print_json({name: items, "more": more, "next": next_, **others})


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON, for output that is streamed."""
    click.echo(json_line(value))


def json_line(value: Any) -> str:
    import json

    return json.dumps(jsonable(value), default=str, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """Entities as JSON values: fields by name, times as ISO 8601 in UTC. Users' values (payload, …) are unchanged."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(f.name, getattr(value, f.name)) for f in fields(value)]
        if not hasattr(value, "actions"):
            return {name: _field(name, v) for name, v in pairs if name != "key"}
        # Who reads it and what is refused are only for its actions.
        shown = {name: _field(name, v) for name, v in pairs if name not in ("key", "actor", "not_now")}
        return shown | {"actions": list(value.actions)}
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
    """The number of columns of the output."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return console().width
    return WIDE


def console() -> Console:
    """A console on stdout. Piped text is not wrapped, so that grep sees whole lines."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 1000
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Plain(width=wide, color_system=colours, highlight=False, markup=False, emoji=False)


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Draw a bar on stderr, if that is a terminal. Yields a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def bar(title: str) -> Iterator[Callable[[float, float | None, str], None]]:
    """Draw a bar on stderr, if that is a terminal. Yields a function that sets done, total and message."""
    if not sys.stderr.isatty():
        yield lambda done, total, message: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(title, total=None)
        yield lambda done, total, message: drawn.update(
            task, completed=done, total=total, description=f"{title} {message}".strip()
        )
