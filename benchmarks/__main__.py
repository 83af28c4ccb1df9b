"""`./go bench`: one command for each question that is measured."""

from __future__ import annotations

import click

from benchmarks.commands import dashboard, engine, growth, http, limits, report, retention, sides, workers


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure onetray on this machine. Compare ratios of one run, not figures of two."""


for group in (engine, growth, limits, workers, retention, http, dashboard, sides, report):
    for command in group.COMMANDS:
        bench.add_command(command)

if __name__ == "__main__":
    bench(prog_name="./go bench")
