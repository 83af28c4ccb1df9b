"""The engine beside the same rows written by hand."""

from __future__ import annotations

import click

from benchmarks.commands import options
from benchmarks.host import Host


@click.command()
@options.as_json
@options.stores
@options.batches
@options.jobs(None, "Jobs for each measurement; by default more for larger batches.")
@options.rounds(3)
def core(as_json: bool, stores: tuple[str, ...], batches: list[int], jobs: int | None, rounds: int) -> None:
    """Jobs per second of submit and of claim + start + succeed, beside the same work as hand-written SQL."""
    from benchmarks.core import compare, jobs_for

    def one(store: str, batch: int) -> dict[str, float]:
        many = jobs or jobs_for(batch)
        options.say(f"{store}, batches of {batch}, {many:,} jobs, {rounds} rounds")
        return compare(host, store, batch, many, rounds)

    with Host(stores) as host:
        found = {store: {str(batch): one(store, batch) for batch in batches} for store in stores}
        machine = host.machine()
    options.show({"core": found, "machine": machine}, as_json)


COMMANDS = (core,)
