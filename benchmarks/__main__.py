"""`./go bench`: one command for each question that is measured."""

from __future__ import annotations

import json
from typing import Any

import click

from benchmarks.catalogue import BESIDE, SIDES
from benchmarks.host import STORES, Host


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure onetray on this machine. Compare ratios of one run, not figures of two."""


def _stores(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    return STORES if value == "both" else (value,)


def _sizes(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    try:
        return [int(size) for size in value.split(",")]
    except ValueError:
        raise click.BadParameter("write sizes with commas between them, e.g. 1,100") from None


as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
store_option = click.option(
    "--store", "stores", default="both", type=click.Choice([*STORES, "both"]), callback=_stores, help="Which database."
)
side_option = click.option(
    "--side", "sides", multiple=True, type=click.Choice(list(SIDES)), callback=lambda *given: given[-1] or tuple(SIDES),
    help="Only these; all by default.",
)  # fmt: skip


@bench.command()
@as_json
@store_option
@click.option("--batch", "batches", default="1,10,100,500", callback=_sizes, help="Batch sizes.")
@click.option("--jobs", type=click.IntRange(1), help="Jobs for each measurement; by default more for larger batches.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="The medians of so many rounds are given.")
def core(as_json: bool, stores: tuple[str, ...], batches: list[int], jobs: int | None, rounds: int) -> None:
    """Jobs per second of submit and of claim + start + succeed, beside the same work as hand-written SQL."""
    from benchmarks.core import JOBS, compare

    found: dict[str, dict[str, dict[str, float]]] = {}
    with Host(stores) as host:
        for store in stores:
            found[store] = {}
            for batch in batches:
                many = jobs or JOBS.get(batch, 20_000)
                click.echo(f"{store}, batches of {batch}, {many:,} jobs, {rounds} rounds", err=True)
                found[store][str(batch)] = compare(host, store, batch, many, rounds)
        machine = host.machine()
    _show({"core": found, "machine": machine}, as_json)


@bench.command()
@as_json
@store_option
@click.option("--idle", default=1_000_000, type=click.IntRange(0), help="Tasks beside that cannot be claimed.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="The medians of so many rounds are compared.")
def growth(as_json: bool, stores: tuple[str, ...], idle: int, rounds: int) -> None:
    """Claims per second beside many tasks that cannot be claimed, as a share of those without them."""
    from benchmarks.growth import growth as measure

    found: dict[str, float] = {}
    with Host(stores) as host:
        for store in stores:
            click.echo(f"{store}, {idle:,} tasks beside, {rounds} rounds", err=True)
            found[store] = measure(host, store, idle, rounds)
        machine = host.machine()
    if as_json:
        click.echo(json.dumps({"growth": found, "machine": machine}))
        return
    for store, ratio in found.items():
        click.echo(f"{store:>10} {ratio:>8}")
    click.echo("\n" + "\n".join(f"{k}: {v}" for k, v in machine.items()))


@bench.command()
@as_json
@store_option
@click.option("--size", default=100_000, type=click.IntRange(1_000), help="Tasks in the large stage.")
@click.option("--most", default=1.5, help="Exit with 1 when a finished task of the large stage costs more than this.")
@click.pass_context
def flows(ctx: click.Context, as_json: bool, stores: tuple[str, ...], size: int, most: float) -> None:
    """The cost of a finished task in a stage of 1,000 and in a large one. `growth` is their ratio."""
    from benchmarks.flows import flows as measure

    found: dict[str, dict[str, float]] = {}
    with Host(stores) as host:
        for store in stores:
            click.echo(f"{store}, a stage of {size:,} tasks beside stages of 1,000", err=True)
            found[store] = measure(host, store, size)
        machine = host.machine()
    if as_json:
        growth = {store: figures["growth"] for store, figures in found.items()}
        click.echo(json.dumps({"growth": growth, "flows": found, "machine": machine}))
    else:
        for store, figures in found.items():
            click.echo(f"{store:>10}" + "".join(f"{name:>16} {value:>8,}" for name, value in figures.items()))
        click.echo("\n" + "\n".join(f"{k}: {v}" for k, v in machine.items()))
    if any(figures["growth"] > most for figures in found.values()):
        ctx.exit(1)


@bench.command()
@as_json
@store_option
@click.option("--old", default=100_000, type=click.IntRange(1), help="Old jobs that there are to remove.")
@click.option("--jobs", default=10_000, type=click.IntRange(1), help="Jobs of each drain.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="The medians of so many rounds are compared.")
def retention(as_json: bool, stores: tuple[str, ...], old: int, jobs: int, rounds: int) -> None:
    """Jobs per second of a drain while old jobs are removed beside it. `ratio` is to one without them."""
    from benchmarks.retention import retention as measure

    with Host(stores) as host:
        found = {store: measure(host, store, old, jobs, rounds) for store in stores}
        machine = host.machine()
    _show_sides({"retention": found, "machine": machine}, as_json)


@bench.command()
@as_json
@side_option
@click.option("--submits", default=200, type=click.IntRange(1), help="Jobs for each side, in all rounds together.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="How often all take their turn.")
def pickup(as_json: bool, sides: tuple[str, ...], submits: int, rounds: int) -> None:
    """Milliseconds from a submit to the begin of its handler in an idle worker, beside the peers'."""
    from benchmarks.pickup import pickup as measure

    with Host(tuple({SIDES[name].store for name in sides})) as host:
        click.echo(f"{', '.join(sides)}: {submits} submits each, {rounds} rounds", err=True)
        found = measure(host, sides, submits, rounds)
        machine = host.machine()
    _show_sides({"pickup": found, "machine": machine}, as_json)


@bench.command()
@as_json
@side_option
@click.option("--seconds", default=10.0, type=click.FloatRange(1), help="How long each worker is watched.")
def idle(as_json: bool, sides: tuple[str, ...], seconds: float) -> None:
    """The CPU time of a worker that has nothing to do, in percent of one core."""
    from benchmarks.idle import idle as measure

    with Host(tuple({SIDES[name].store for name in sides})) as host:
        click.echo(f"{', '.join(sides)}: {seconds:g} s each", err=True)
        found = measure(host, sides, seconds)
        machine = host.machine()
    _show_sides({"idle": found, "machine": machine}, as_json)


@bench.command()
@as_json
@click.option("--markdown", is_flag=True, help="The table as Markdown.")
@click.option(
    "--peer", "names", multiple=True, type=click.Choice(list(BESIDE)),
    callback=lambda *given: given[-1] or tuple(BESIDE), help="Only these; all by default.",
)  # fmt: skip
@click.option("--jobs", default=20_000, type=click.IntRange(10), help="Jobs for a fast side; slow ones get a share.")
@click.option("--submits", default=100, type=click.IntRange(1), help="Pickups of each side, in all rounds together.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="How often all take their turn.")
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
    names = tuple(dict.fromkeys(names))
    with Host(tuple({BESIDE[name].store for name in names})) as host:
        result = measure(host, names, jobs, submits, rounds, lambda text: click.echo(text, err=True))
        result |= {"jobs": jobs, "rounds": rounds, "machine": {**host.machine(), "redis": redis_version()}}
    if as_json:
        click.echo(json.dumps(result))
    elif markdown:
        click.echo(table(result))
    else:
        _show_sides(result, as_json)
        for name, why in result["missing"].items():
            click.echo(f"{name} is missing: {why}")


def _show_sides(result: dict[str, Any], as_json: bool) -> None:
    """One line for each side. The peers have no figures that compare them with themselves."""
    if as_json:
        click.echo(json.dumps(result))
        return
    name, machine = next(iter(result)), result["machine"]
    headings = list(dict.fromkeys(heading for figures in result[name].values() for heading in figures))
    click.echo(f"{'':>20}" + "".join(f"{h:>18}" for h in headings))
    for side, figures in result[name].items():
        click.echo(f"{side:>20}" + "".join(f"{_cell(figures.get(h)):>18}" for h in headings))
    click.echo("\n" + "\n".join(f"{k}: {v}" for k, v in machine.items()))


def _cell(value: float | None) -> str:
    return "" if value is None else str(value)


def _show(result: dict[str, Any], as_json: bool) -> None:
    """The same figures, for a program or for a reader."""
    if as_json:
        click.echo(json.dumps(result))
        return
    name, machine = next(iter(result)), result["machine"]
    for store, rows in result[name].items():
        headings = list(next(iter(rows.values())))
        click.echo(f"\n{store}\n{'':>10}" + "".join(f"{h:>20}" for h in headings))
        for label, figures in rows.items():
            click.echo(f"{label:>10}" + "".join(f"{figures[h]:>20,}" for h in headings))
    click.echo("\n" + "\n".join(f"{k}: {v}" for k, v in machine.items()))


if __name__ == "__main__":
    bench(prog_name="./go bench")
