"""onetray beside its peers."""

from __future__ import annotations

import click

from benchmarks.catalogue import BESIDE, PYTHON, SIDES
from benchmarks.commands import options
from benchmarks.host import Host


def _stores_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({{**SIDES, **BESIDE}[name].store for name in names})


@click.command()
@options.as_json
@options.sides
@click.option("--submits", default=200, type=click.IntRange(1), help="Jobs for each side, in all rounds together.")
@options.rounds(5)
def pickup(as_json: bool, names: tuple[str, ...], submits: int, rounds: int) -> None:
    """Milliseconds from a submit to the begin of its handler in an idle worker, beside the peers'."""
    from benchmarks.pickup import pickup as measure

    options.say(f"{', '.join(names)}: {submits} submits each, {rounds} rounds")
    on = _stores_of(names)
    options.show(options.together("pickup", on, lambda host: measure(host, names, submits, rounds)), as_json)


@click.command()
@options.as_json
@options.sides
@click.option("--seconds", default=10.0, type=click.FloatRange(1), help="How long each worker is watched.")
def idle(as_json: bool, names: tuple[str, ...], seconds: float) -> None:
    """The CPU time of a worker that has nothing to do, in percent of one core."""
    from benchmarks.idle import idle as measure

    options.say(f"{', '.join(names)}: {seconds:g} s each")
    options.show(options.together("idle", _stores_of(names), lambda host: measure(host, names, seconds)), as_json)


@click.command()
@options.as_json
@click.option("--markdown", is_flag=True, help="The table as Markdown.")
@options.peers()
@options.jobs(20_000, "Jobs for a fast side; slow ones get a share.", least=10)
@click.option("--submits", default=100, type=click.IntRange(1), help="Pickups of each side, in all rounds together.")
@options.rounds(3)
@click.option("--quick", is_flag=True, help="One small round: does everything run? Its figures mean nothing.")
def peers(
    as_json: bool, markdown: bool, names: tuple[str, ...], jobs: int, submits: int, rounds: int, quick: bool
) -> None:
    """Submits, a drain, pickups, CPU time, memory and bytes of onetray and of its peers."""
    from benchmarks.peers import peers as measure
    from benchmarks.peers import table
    from benchmarks.redis_server import redis_version

    if quick:
        jobs, submits, rounds = 200, 3, 1
    with Host(_stores_of(names)) as host:
        result = measure(host, names, jobs, submits, rounds, options.say)
        result |= {"jobs": jobs, "rounds": rounds, "machine": {**host.machine(), "redis": redis_version()}}
    if markdown and not as_json:
        click.echo(table(result))
        return
    options.show(result, as_json)
    if not as_json:
        options.say_who_is_missing(result["missing"])


@click.command()
@options.as_json
@options.peers(PYTHON)
@options.jobs(20_000, "Jobs for a fast side; slow ones get a share.", least=10)
@click.option("--ms", default=1.0, show_default=True, type=click.FloatRange(0), help="How long each handler sleeps.")
@click.option("--at-once", default=500, show_default=True, type=click.IntRange(2), help="Handlers that run at once.")
@options.rounds(3)
def handlers(as_json: bool, names: tuple[str, ...], jobs: int, ms: float, at_once: int, rounds: int) -> None:
    """A drain by handlers that await a short sleep, beside the peers in Python."""
    from benchmarks.handlers import handlers as measure

    with Host(_stores_of(names)) as host:
        result = measure(host, names, jobs, ms, at_once, rounds, options.say)
        result |= {"jobs": jobs, "rounds": rounds, "machine": host.machine()}
    options.show(result, as_json)
    if not as_json:
        options.say_who_is_missing(result["missing"])


COMMANDS = (pickup, idle, peers, handlers)
