"""What becomes of the speed as a database fills, ages, or cannot be cleaned up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from benchmarks.commands import options
from benchmarks.host import Host

CASES = ["idle", "queued", "finished", "held", "passed"]
Case = Callable[[Host, str], dict[str, float]]


def _size(name: str, default: int, text: str, least: int = 0) -> Callable[[Any], Any]:
    return click.option(name, default=default, show_default=True, type=click.IntRange(least), help=text)


@click.command()
@options.as_json
@options.stores
@options.chosen("--case", CASES)
@_size("--idle", 1_000_000, "Tasks beside that cannot be claimed.")
@_size("--queued", 1_000_000, "Tasks beside that can be.")
@_size("--finished", 10_000_000, "Tasks beside that have ended.")
@click.option(
    "--seconds", default=300.0, show_default=True, type=click.FloatRange(0.1), help="A transaction is held open."
)
@_size("--passed", 1_000_000, "Jobs that go through.", 1)
@_size("--first", 50_000, "Those at the beginning and the end of which are compared.", 1)
@options.rounds(5)
def growth(as_json: bool, stores: tuple[str, ...], names: tuple[str, ...], rounds: int, **sizes: Any) -> None:
    """Rates of claim + report in a database that is full, old or held open, as a share of those in a fresh one."""
    cases = growth_cases(rounds, **sizes)

    def each(host: Host) -> dict[str, dict[str, dict[str, float]]]:
        return {name: {store: cases[name](host, store) for store in stores} for name in names}

    options.show(options.together("growth", stores, each), as_json)


def growth_cases(
    rounds: int, idle: int, queued: int, finished: int, seconds: float, passed: int, first: int
) -> dict[str, Case]:
    """Each case with its sizes, as a call for a host and a store."""
    from benchmarks.growth import beside
    from benchmarks.held import held
    from benchmarks.passed import passed as through

    crowds = {"idle": idle, "queued": queued, "finished": finished}
    return {
        **{
            case: partial(beside, case=case, count=count, rounds=rounds, say=options.say)
            for case, count in crowds.items()
        },
        "held": partial(held, seconds=seconds, say=options.say),
        "passed": partial(through, jobs=passed, first=first, say=options.say),
    }


COMMANDS = (growth,)
