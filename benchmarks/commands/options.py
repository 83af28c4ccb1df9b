"""What several commands have in common: options, a host for the run, and how figures are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import click

from benchmarks.catalogue import BESIDE, SIDES
from benchmarks.host import STORES, Host

Row = tuple[tuple[str, ...], dict[str, Any]]


def _stores(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    return STORES if value == "both" else (value,)


def sizes(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    """Whole numbers above zero, with commas between them."""
    try:
        found = [int(size) for size in value.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.BadParameter("write numbers above zero with commas between them, e.g. 1,100")
    return found


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
stores = click.option(
    "--store", "stores", default="both", type=click.Choice([*STORES, "both"]), callback=_stores, help="Which database."
)
batches = click.option("--batch", "batches", default="1,10,100,500", callback=sizes, help="Batch sizes.")


def rounds(default: int) -> Callable[[Any], Any]:
    return click.option(
        "--rounds", default=default, show_default=True, type=click.IntRange(1), help="How often all take their turn."
    )


def jobs(default: int | None, text: str = "Jobs for each measurement.", least: int = 1) -> Callable[[Any], Any]:
    return click.option("--jobs", default=default, show_default=True, type=click.IntRange(least), help=text)


def chosen(
    option: str, names: list[str], text: str = "Only these; all by default.", argument: str = "names"
) -> Callable[[Any], Any]:
    """An option that chooses some of these names, all without it."""
    return click.option(
        option, argument, multiple=True, type=click.Choice(names), help=text,
        callback=lambda *given: tuple(dict.fromkeys(given[-1])) or tuple(names),
    )  # fmt: skip


sides = chosen("--side", list(SIDES))


def peers(names: list[str] | None = None) -> Callable[[Any], Any]:
    return chosen("--peer", names or list(BESIDE))


def say(text: str) -> None:
    """Tell whoever waits how far it is: figures alone go to standard output."""
    click.echo(text, err=True)


def say_who_is_missing(missing: dict[str, str]) -> None:
    for name, why in missing.items():
        click.echo(f"{name} is missing: {why}")


def measured(name: str, stores: tuple[str, ...], of: Callable[[Host, str], Any]) -> dict[str, Any]:
    """The figures of each store under their name, with the machine that they were taken on."""
    return together(name, stores, lambda host: {store: of(host, store) for store in stores})


def together(name: str, stores: tuple[str, ...], measure: Callable[[Host], Any]) -> dict[str, Any]:
    """The same for what is measured on several stores in turns."""
    with Host(stores) as host:
        return {name: measure(host), "machine": host.machine()}


def show(result: dict[str, Any], as_json: bool) -> None:
    """The same figures, for a program or for a reader."""
    if as_json:
        click.echo(json.dumps(result))
        return
    tree = next(iter(result.values()))
    for above, rows in groupby(_rows(tree), key=lambda row: row[0][:-1]):
        _table(", ".join(above), list(rows))
    click.echo("\n" + "\n".join(f"{k}: {v}" for k, v in result["machine"].items()))


def _rows(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Row]:
    """The innermost dicts, each with the names that lead to it."""
    if not any(isinstance(value, dict) for value in tree.values()):
        yield path, tree
        return
    for name, value in tree.items():
        yield from _rows(value, (*path, name))


def _table(title: str, rows: list[Row]) -> None:
    headings = list(dict.fromkeys(heading for _, figures in rows for heading in figures))
    labels = [path[-1] if path else "" for path, _ in rows]
    cells = [[_cell(figures.get(heading)) for heading in headings] for _, figures in rows]
    widths = [max(len(h), *(len(line[i]) for line in cells)) + 2 for i, h in enumerate(headings)]
    first = max(len(label) for label in labels)
    click.echo((f"\n{title}\n" if title else "\n") + " " * first + _line(headings, widths))
    for label, line in zip(labels, cells, strict=True):
        click.echo(f"{label:>{first}}" + _line(line, widths))


def _line(words: list[str], widths: list[int]) -> str:
    return "".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case int() | float():
            return f"{value:,}"
        case list():
            return " ".join(map(_cell, value))
        case _:
            return str(value)
