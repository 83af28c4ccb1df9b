"""The dashboard with many jobs, and many of it open."""

from __future__ import annotations

from typing import Any

import click

from benchmarks.commands import options
from benchmarks.host import Host

PARTS = ["views", "live"]


@click.command()
@options.as_json
@options.stores
@options.chosen("--part", PARTS, "Only the time of the pages, or only the CPU time of open ones.")
@options.jobs(1_000_000, "Jobs in the database.", 100)
@click.option("--requests", default=25, show_default=True, type=click.IntRange(1), help="Requests for each page.")
@click.option("--open", "dashboards", default=50, show_default=True, type=click.IntRange(1, 500), help="Open pages.")
@click.option("--rate", default=100, show_default=True, type=click.IntRange(10), help="Jobs a second beside them.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0.1), help="Of each measurement.")
def dashboard(
    as_json: bool,
    stores: tuple[str, ...],
    names: tuple[str, ...],
    jobs: int,
    requests: int,
    dashboards: int,
    rate: int,
    seconds: float,
) -> None:
    """The time of every page with many jobs; CPU time of the server with many open pages under load."""
    from benchmarks.dashboard import live, views

    def of(host: Host, store: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "views" in names:
            found["views"] = views(host, store, jobs, requests, options.say)
        if "live" in names:
            found["live"] = {"open pages": live(host, store, jobs, dashboards, rate, seconds, options.say)}
        return found

    options.show(options.measured("dashboard", stores, of), as_json)


COMMANDS = (dashboard,)
