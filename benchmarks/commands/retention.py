"""What the removal of old jobs costs."""

from __future__ import annotations

import click

from benchmarks.commands import options
from benchmarks.host import Host


@click.command()
@options.as_json
@options.stores
@click.option("--old", default=100_000, show_default=True, type=click.IntRange(1), help="Old jobs to remove.")
@options.jobs(10_000, "Jobs of each drain.")
@options.rounds(5)
def retention(as_json: bool, stores: tuple[str, ...], old: int, jobs: int, rounds: int) -> None:
    """Jobs per second of a drain while old jobs are removed beside it. `ratio` is to one without them."""
    from benchmarks.retention import retention as measure

    def of(host: Host, store: str) -> dict[str, float]:
        return measure(host, store, old, jobs, rounds, options.say)

    options.show(options.measured("retention", stores, of), as_json)


COMMANDS = (retention,)
