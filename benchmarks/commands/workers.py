"""Real workers and flows: what they cost as there are more of them."""

from __future__ import annotations

import json

import click

from benchmarks.commands import options
from benchmarks.host import Host


@click.command()
@options.as_json
@options.stores
@click.option("--size", default=100_000, type=click.IntRange(1_000), help="Tasks in the large stage.")
@click.option("--most", default=1.5, help="Exit with 1 when a finished task of the large stage costs more than this.")
@click.pass_context
def flows(ctx: click.Context, as_json: bool, stores: tuple[str, ...], size: int, most: float) -> None:
    """The cost of a finished task in a stage of 1,000 and in a large one. `growth` is their ratio."""
    from benchmarks.flows import flows as measure

    options.say(f"a stage of {size:,} tasks beside stages of 1,000")
    result = options.measured("flows", stores, lambda host, store: measure(host, store, size))
    growth = {store: figures["growth"] for store, figures in result["flows"].items()}
    if as_json:
        click.echo(json.dumps({"growth": growth, **result}))
    else:
        options.show(result, as_json)
    if max(growth.values()) > most:
        ctx.exit(1)


@click.command()
@options.as_json
@options.stores
@click.option("--counts", default="1,2,4,8", callback=options.sizes, help="Numbers of worker processes.")
@click.option(
    "--queues", default="1,4", callback=options.sizes, help="Numbers of queues, each half as long as the last."
)
@options.jobs(20_000)
@options.rounds(3)
def workers(
    as_json: bool, stores: tuple[str, ...], counts: list[int], queues: list[int], jobs: int, rounds: int
) -> None:
    """Drains by several worker processes: their rate, and how evenly workers and queues are served."""
    from benchmarks.workers import workers as measure

    def of(host: Host, store: str) -> dict[str, dict[str, dict[str, float]]]:
        return measure(host, store, counts, queues, jobs, rounds, options.say)

    options.show(options.measured("workers", stores, of), as_json)


@click.command()
@options.as_json
@options.stores
@click.option("--stages", default=10, show_default=True, type=click.IntRange(1, 1_000), help="Stages of the flow.")
@click.option("--size", default=1_000, show_default=True, type=click.IntRange(1), help="Tasks of each stage.")
@options.rounds(3)
def flow(as_json: bool, stores: tuple[str, ...], stages: int, size: int, rounds: int) -> None:
    """A flow of many stages through a real worker, beside as many single tasks."""
    from benchmarks.flow import flow as measure

    def of(host: Host, store: str) -> dict[str, float]:
        options.say(f"{store}: {stages} stages of {size:,} tasks, {rounds} rounds")
        return measure(host, store, stages, size, rounds)

    options.show(options.measured("flow", stores, of), as_json)


@click.command()
@options.as_json
@options.stores
@options.jobs(100_000, "Tasks that are queued.")
def memory(as_json: bool, stores: tuple[str, ...], jobs: int) -> None:
    """The memory of a worker with many tasks queued: at its start, at its highest, at the end."""
    from benchmarks.memory import memory as measure

    def of(host: Host, store: str) -> dict[str, float]:
        options.say(f"{store}: {jobs:,} jobs")
        return measure(host, store, jobs)

    options.show(options.measured("memory", stores, of), as_json)


COMMANDS = (flows, flow, memory, workers)
