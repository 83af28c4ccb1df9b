"""What is made of figures: charts, and whether targets are met."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import options
from benchmarks.host import STORES, Host
from benchmarks.targets import GROUPS


def _results(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> dict[str, Any]:
    """All figures of all files; of two with the same name the last."""
    found: dict[str, Any] = {}
    for path in paths:
        try:
            result = json.loads(path.read_text())
        except ValueError as e:
            raise click.BadParameter(f"{path} is no JSON: {e}") from None
        if not isinstance(result, dict):
            raise click.BadParameter(f"{path} holds no JSON object: give what a command printed with --json")
        found |= result
    return found


@click.command()
@click.argument(
    "results", metavar="FILE.json...", nargs=-1, required=True, callback=_results,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--out", default="docs/images", type=click.Path(file_okay=False, path_type=Path), help="A folder.")
def plot(results: dict[str, Any], out: Path) -> None:
    """Draw charts as SVG from the JSON that peers, growth and workers print."""
    from benchmarks.plot import DRAWN, charts

    drawn = charts(results)
    if not drawn:
        raise click.UsageError(f"there is nothing to draw in these files: give the JSON of {', '.join(DRAWN)}")
    out.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        (out / f"{name}.svg").write_text(text)
        click.echo(out / f"{name}.svg")


@click.command()
@options.as_json
@options.chosen("--only", list(GROUPS))
@click.option("--quick", is_flag=True, help="Everything small: does it run? Its figures mean nothing.")
def targets(as_json: bool, names: tuple[str, ...], quick: bool) -> None:
    """What onetray is to reach, and whether it does: measured in one run of about 40 minutes."""
    from benchmarks.measured import QUICK, Measured, Sizes
    from benchmarks.targets import targets as judge

    with Host(STORES) as host:
        run = Measured(host, QUICK if quick else Sizes(), options.say)
        judged = judge(run, names)
        result = {"targets": judged, "missing": run.missing, **run.figures(), "machine": host.machine()}
    options.show(result, as_json)
    if not as_json:
        options.say_who_is_missing(run.missing)


COMMANDS = (plot, targets)
