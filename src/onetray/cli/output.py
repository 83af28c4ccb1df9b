"""How commands print: text for people through rich, JSON for programs.

Owns the console. rich is loaded when there is text to lay out or to colour; it leaves colour out when the output is
not a terminal or NO_COLOR is set.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def console() -> Console:
    """Where people read. Piped text is not wrapped: a line stays a line for grep."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 1000
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Plain(width=wide, color_system=colours, highlight=False, markup=False, emoji=False)
