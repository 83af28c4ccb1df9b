"""What is made of figures: charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


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


COMMANDS = (plot,)
