"""The engine beside the same rows written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from benchmarks.commands import options
from benchmarks.host import Host
from benchmarks.log_shapes import ENCODINGS

Figures = dict[str, Any]
by_batch = options.jobs(None, "Jobs for each measurement; by default more for larger batches.")


@click.command()
@options.as_json
@options.stores
@options.batches
@by_batch
@options.rounds(3)
def core(as_json: bool, stores: tuple[str, ...], batches: list[int], jobs: int | None, rounds: int) -> None:
    """Jobs per second of submit and of claim + start + succeed, beside the same work as hand-written SQL."""
    from benchmarks.core import compare

    options.show(options.measured("core", stores, _each_batch(compare, batches, jobs, rounds)), as_json)


@click.command()
@options.as_json
@options.stores
@options.batches
@by_batch
@options.rounds(3)
def limit(as_json: bool, stores: tuple[str, ...], batches: list[int], jobs: int | None, rounds: int) -> None:
    """Jobs per second that the databases allow: the same rows as hand-written SQL, without an engine."""
    from benchmarks.limits import SINGLE, limits, single_submits

    of_batches = _each_batch(limits, batches, jobs, rounds)

    def of(host: Host, store: str) -> Figures:
        single = single_submits(host, store, min(jobs or SINGLE, SINGLE), rounds)
        return {**of_batches(host, store), "single": single}

    options.show(options.measured("limit", stores, of), as_json)


def _each_batch(
    measure: Callable[[Host, str, int, int, int], Figures], batches: list[int], jobs: int | None, rounds: int
) -> Callable[[Host, str], Figures]:
    """A call that measures each batch size on a store, with as many jobs as suit it."""
    from benchmarks.core import jobs_for

    def of(host: Host, store: str) -> Figures:
        found = {}
        for batch in batches:
            many = jobs or jobs_for(batch)
            options.say(f"{store}, batches of {batch}, {many:,} jobs, {rounds} rounds")
            found[str(batch)] = measure(host, store, batch, many, rounds)
        return found

    return of


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

    def of(host: Host, store: str) -> Figures:
        options.say(f"{store}: {jobs:,} submits of one caller, {each} of each of {callers}, {rounds} rounds")
        return measure(host, store, jobs, callers, each, rounds)

    options.show(options.measured("submit", stores, of), as_json)


@click.command()
@options.as_json
@options.stores
@options.chosen("--encoding", list(ENCODINGS))
@options.chosen("--order", ["in_order", "shuffled"], argument="orders")
@click.option("--events", default=40_000, show_default=True, type=click.IntRange(4), help="In each log; 4 for a job.")
@options.rounds(3)
def log(
    as_json: bool, stores: tuple[str, ...], names: tuple[str, ...], orders: tuple[str, ...], events: int, rounds: int
) -> None:
    """Bytes, CPU time and reads of the log of a drain by hand, in several encodings. `x_` is the ratio to rows."""
    from benchmarks.log import log as measure

    def of(host: Host, store: str) -> Figures:
        return measure(host, store, names, orders, events, rounds, options.say)

    options.show(options.measured("log", stores, of), as_json)


COMMANDS = (core, limit, submit, log)
