"""The engine beside the same rows written by hand."""

from __future__ import annotations

from typing import Any

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

    def of(host: Host, store: str) -> dict[str, dict[str, float]]:
        return {str(batch): one(host, store, batch) for batch in batches}

    def one(host: Host, store: str, batch: int) -> dict[str, float]:
        many = jobs or jobs_for(batch)
        options.say(f"{store}, batches of {batch}, {many:,} jobs, {rounds} rounds")
        return compare(host, store, batch, many, rounds)

    options.show(options.measured("core", stores, of), as_json)


@click.command()
@options.as_json
@options.stores
@options.jobs(1_000, "Submits of one caller.")
@click.option("--callers", default=64, show_default=True, type=click.IntRange(1, 1_000), help="Callers at once.")
@click.option("--each", default=50, show_default=True, type=click.IntRange(1), help="Submits of each of them.")
@options.rounds(3)
def submit(as_json: bool, stores: tuple[str, ...], jobs: int, callers: int, each: int, rounds: int) -> None:
    """Single submits: one caller beside transactions by hand, many threads and coroutines beside one caller."""
    from benchmarks.submit import submit as measure

    def of(host: Host, store: str) -> dict[str, dict[str, float]]:
        options.say(f"{store}: {jobs:,} submits of one caller, {each} of each of {callers}, {rounds} rounds")
        return measure(host, store, jobs, callers, each, rounds)

    options.show(options.measured("submit", stores, of), as_json)


@click.command()
@options.as_json
@options.stores
@options.batches
@options.jobs(None, "Jobs for each measurement; by default more for larger batches.")
@options.rounds(3)
def limit(as_json: bool, stores: tuple[str, ...], batches: list[int], jobs: int | None, rounds: int) -> None:
    """Jobs per second that the databases allow: the same rows as hand-written SQL, without an engine."""
    from benchmarks.core import jobs_for
    from benchmarks.limits import SINGLE, limits, single_submits

    def of(host: Host, store: str) -> dict[str, dict[str, Any]]:
        found = {str(batch): one(host, store, batch) for batch in batches}
        return {**found, "single": single_submits(host, store, min(jobs or SINGLE, SINGLE), rounds)}

    def one(host: Host, store: str, batch: int) -> dict[str, Any]:
        many = jobs or jobs_for(batch)
        options.say(f"{store}, batches of {batch}, {many:,} jobs, {rounds} rounds")
        return limits(host, store, batch, many, rounds)

    options.show(options.measured("limit", stores, of), as_json)


COMMANDS = (core, limit, submit)
