"""The server beside a bare one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.commands import options
from benchmarks.host import Host


@click.command()
@options.as_json
@options.stores
@click.option("--batch", "batches", default="1,100", callback=options.sizes, help="Jobs in a request.")
@options.jobs(None, "Jobs for each measurement; by default more for larger batches.")
@click.option(
    "--clients",
    type=click.IntRange(1, 500),
    help="Connections at once: by default 32 with one job in a request, else 16; of a dialect 8.",
)
@click.option(
    "--dialect", type=click.Choice(["jobnik", "mcp"]), help="Tasks that clients of this dialect take and complete."
)
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The working copy of another version, whose server takes turns with this one.",
)
@options.rounds(3)
def http(
    as_json: bool,
    stores: tuple[str, ...],
    batches: list[int],
    jobs: int | None,
    clients: int | None,
    dialect: str | None,
    before: Path | None,
    rounds: int,
) -> None:
    """Submits, and claims with reports, over HTTP; beside a route that only parses and answers the same JSON."""
    from benchmarks.http import http as measure
    from benchmarks.jobnik import jobnik
    from benchmarks.mcp import mcp

    def of_dialect(host: Host, store: str) -> dict[str, Any]:
        many, workers = jobs or 2_000, clients or 8
        options.say(f"{store}, {many:,} jobs by {dialect}, {workers} clients, {rounds} rounds")
        measure_dialect = {"jobnik": jobnik, "mcp": mcp}[str(dialect)]
        return {str(dialect): measure_dialect(host, store, many, workers, rounds)}

    if dialect is not None:
        options.show(options.measured("http", stores, of_dialect), as_json)
        return

    def of(host: Host, store: str) -> dict[str, Any]:
        found = {}
        for batch in batches:
            many, at_once = jobs or (8_000 if batch == 1 else 20_000), clients or (32 if batch == 1 else 16)
            options.say(f"{store}, {batch} jobs in a request, {many:,} jobs, {at_once} clients, {rounds} rounds")
            found[str(batch)] = measure(host, store, batch, many, at_once, rounds, before)
        return found

    options.show(options.measured("http", stores, of), as_json)


COMMANDS = (http,)
