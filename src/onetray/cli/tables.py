"""Tables that fit: each row is one line, long fields are shortened, ids never are.

Owns the layout. Piped output is as wide as its content, so that nothing is lost to grep.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows below their columns' names."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    cells = [[one_line(value) for value in row] for row in rows]
    widths = [max(map(cell_len, (name, *(row[i] for row in cells)))) for i, name in enumerate(columns)]
    fixed = [any(_ID.search(row[i]) for row in cells) for i in range(len(columns))]
    widths = fitted(widths, fixed, width())
    out = console()

    def line(values: Sequence[str], style: str | None) -> None:
        text = Text()
        for i, (value, room) in enumerate(zip(values, widths, strict=True)):
            shown = value if cell_len(value) <= room else f"{set_cell_size(value, room - 1)}…"
            padded = shown if i == len(widths) - 1 else set_cell_size(shown, room) + " " * GAP
            text.append(padded, style=style or STATE_COLOURS.get(value))
        text.rstrip()
        out.print(text, soft_wrap=True)

    line(columns, "bold")
    for row in cells:
        line(row, None)


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one to a line; what is not there is left out."""
    from rich.text import Text

    out = console()
    kept = [(name, one_line(value)) for name, value in facts if value not in (None, "", (), [], {})]
    room = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        text = Text.assemble((f"{name:<{room}}", "bold"), "  ", (value, STATE_COLOURS.get(value, "")))
        out.print(text, soft_wrap=True)


def fitted(widths: list[int], fixed: list[bool], room: int) -> list[int]:
    """Take from the widest columns, a place at a time, until all fit. Ids keep theirs, whatever the room."""
    fit = list(widths)
    while sum(fit) + GAP * (len(fit) - 1) > room:
        widest = max((i for i in range(len(fit)) if not fixed[i]), key=lambda i: fit[i], default=None)
        if widest is None or fit[widest] <= NARROWEST:
            break
        fit[widest] -= 1
    return fit


def one_line(value: Any) -> str:
    """A value without anything that would break its line, or talk to the terminal."""
    return "" if value is None else _BREAKS.sub(" ", str(value)).strip()
