"""Tables that fit the terminal: one line for each row; long cells are cut, ids and states never.

Piped output is as wide as its content, so that grep sees everything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from onetray.cli.output import console, width

GAP = 2
NARROWEST = 6
STATE_COLOURS = {
    "succeeded": "green", "running": "cyan", "assigned": "cyan", "failed": "red", "dead_lettered": "red",
    "cancelled": "yellow", "partial": "yellow", "waiting": "magenta", "waiting_input": "magenta", "blocked": "magenta",
    "paused": "magenta", "ok": "green", "warn": "yellow", "fail": "red",
}  # fmt: skip
_ID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str | None = None) -> None:
    """Print a table. Without rows, print `empty` on stderr instead of its head."""
    if not rows and empty is not None:
        click.echo(empty, err=True)
        return
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    cells = [[one_line(value) for value in row] for row in rows]
    widths = [max(map(cell_len, (name, *(row[i] for row in cells)))) for i, name in enumerate(columns)]
    fixed = [name == "state" or any(_ID.search(row[i]) for row in cells) for i, name in enumerate(columns)]
    widths = fitted(widths, fixed, width())
    out = console()

    def line(values: Sequence[str], style: str | None) -> None:
        text = Text()
        for value, space in zip(values, widths, strict=True):
            if space:
                cut = value if cell_len(value) <= space else f"{set_cell_size(value, space - 1)}…"
                text.append(set_cell_size(cut, space) + " " * GAP, style=style or STATE_COLOURS.get(value))
        text.rstrip()
        out.print(text, soft_wrap=True)

    line(columns, "bold")
    for row in cells:
        line(row, None)


@dataclass(frozen=True)
class Lines:
    """The value of a fact that has several lines, such as a traceback. They are printed below its name, indented."""

    text: str


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one pair on each line, without empty values."""
    from rich.text import Text

    out = console()
    pairs = [(name, value) for name, value in facts if value not in (None, "", (), [], {})]
    name_width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        first = "" if isinstance(value, Lines) else one_line(value)
        text = Text.assemble((f"{name:<{name_width}}", "bold"), "  ", (first, STATE_COLOURS.get(first, "")))
        text.rstrip()
        out.print(text, soft_wrap=True)
        for line in value.text.splitlines() if isinstance(value, Lines) else ():
            out.print(Text(f"    {_BREAKS.sub(' ', line)}".rstrip()), soft_wrap=True)


def fitted(widths: list[int], fixed: list[bool], space: int) -> list[int]:
    """Narrow the widest columns, one character at a time, until all fit. What still does not fit loses its last
    columns: their width is 0. The fixed columns, of ids and states, keep their width."""
    fit = list(widths)
    while _total(fit) > space:
        cuttable = [i for i in range(len(fit)) if fit[i] and not fixed[i]]
        if not cuttable:
            break
        widest = max(cuttable, key=lambda i: fit[i])
        if fit[widest] > NARROWEST:
            fit[widest] -= 1
        else:
            fit = [0 if i == cuttable[-1] else widths[i] if fit[i] else 0 for i in range(len(fit))]
    return fit


def _total(widths: list[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * (len(shown) - 1)


def one_line(value: Any) -> str:
    """A value without line breaks and control characters."""
    return "" if value is None else _BREAKS.sub(" ", str(value)).strip()
