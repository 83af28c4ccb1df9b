"""`onetray lifecycle`: print the states and transitions of a lifecycle.

Owns the tables. domain/diagram.py makes the JSON and the diagram.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli.options import json_option
from onetray.cli.output import console, print_json
from onetray.domain.diagram import as_dict, diagram, who_may

if TYPE_CHECKING:
    from onetray.domain.machine import Machine

TRANSITION_COLUMNS = ("transition", "from", "to", "by", "fenced", "event")
WAY_OUT_COLUMNS = ("open state", "way out", "")


@click.command(short_help="Print the states and transitions of a lifecycle.")
@click.argument("entity", default="task")
@json_option
@click.option("--mermaid", is_flag=True, help="Print a Mermaid state diagram.")
@click.option("--table", is_flag=True, help="Print Markdown tables.")
def lifecycle(entity: str, as_json: bool, mermaid: bool, table: bool) -> None:
    """Print the lifecycle of ENTITY (task, stage or flow).

    It lists the transitions, the actors that may make them, and what ends each open state.
    """
    if as_json + mermaid + table > 1:
        raise click.UsageError("--json, --mermaid and --table exclude each other: pass only one")
    machine = _machine(entity)
    if as_json:
        print_json(as_dict(machine))
    elif mermaid:
        click.echo("\n".join(diagram(machine)))
    elif table:
        click.echo(f"{markdown(TRANSITION_COLUMNS, transitions(machine))}\n")
        click.echo(markdown(WAY_OUT_COLUMNS, ways_out(machine)))
    else:
        _print_text(machine)


def _machine(entity: str) -> Machine:
    from onetray.domain.lifecycle import MACHINES

    if entity not in MACHINES:
        raise click.UsageError(f"unknown lifecycle {entity!r}; known: {', '.join(MACHINES)}")
    return MACHINES[entity]


def transitions(machine: Machine) -> list[tuple[str, ...]]:
    return [
        (t.name, ", ".join(t.sources) or "(new)", t.target, ", ".join(who_may(t)), "yes" if t.fenced else "", t.event)
        for t in machine.transitions
    ]


def ways_out(machine: Machine) -> list[tuple[str, ...]]:
    return [(s, machine.ways_out[s].means, machine.ways_out[s].note) for s in machine.open_states]


def markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _print_text(machine: Machine) -> None:
    out = console()
    out.print(_grid(TRANSITION_COLUMNS, transitions(machine)))
    out.print()
    out.print(_grid(WAY_OUT_COLUMNS, ways_out(machine)))


def _grid(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Any:
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(column)
    for row in rows:
        grid.add_row(*row)
    return grid
