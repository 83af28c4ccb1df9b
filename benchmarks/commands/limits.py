"""What limits and fairness cost, and what they give."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.commands import options
from benchmarks.host import Host
from benchmarks.limited import HELD_BACK, VARIANTS


@click.command("limits")
@options.as_json
@options.stores
@options.chosen("--case", [*VARIANTS, HELD_BACK])
@options.jobs(20_000)
@options.rounds(3)
@click.option(
    "--before", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="A checkout of an earlier version, whose plain drain is measured, too.",
)  # fmt: skip
@click.option(
    "--held-back", "held", default=1_000_000, show_default=True, type=click.IntRange(1), help="Tasks that wait."
)
def limits(
    as_json: bool, stores: tuple[str, ...], names: tuple[str, ...], jobs: int, rounds: int, before: Path | None,
    held: int,
) -> None:  # fmt: skip
    """Drains with limits and fairness as a share of one without; claims beside tasks that a limit holds back."""
    from benchmarks.limited import PLAIN, beside_held_back, limited

    variants = tuple(dict.fromkeys((PLAIN, *(name for name in names if name != HELD_BACK))))

    def of(host: Host, store: str) -> dict[str, dict[str, float | None]]:
        found = limited(host, store, variants, jobs, rounds, before, options.say) if variants[1:] else {}
        beside = beside_held_back(host, store, held, rounds, options.say) if HELD_BACK in names else {}
        return {**found, **{f"{HELD_BACK}_{name}": {**figures} for name, figures in beside.items()}}

    options.show(options.measured("limits", stores, of), as_json)


@click.command("fairness")
@options.as_json
@options.stores
@click.option("--big", default=1_000_000, show_default=True, type=click.IntRange(1), help="Tasks of the big tenant.")
@click.option(
    "--seconds", default=20.0, show_default=True, type=click.FloatRange(0), help="Until the rest is computed."
)
def fairness(as_json: bool, stores: tuple[str, ...], big: int, seconds: float) -> None:
    """How long ten tasks of a small tenant wait beside those of a big one, with and without `fair_by`."""
    from benchmarks.fairness import fairness as measure

    def of(host: Host, store: str) -> dict[str, dict[str, float | bool]]:
        return measure(host, store, big, seconds, options.say)

    options.show(options.measured("fairness", stores, of), as_json)


COMMANDS = (limits, fairness)
