"""`onetray workers`: who works, on what, and who has fallen silent.

Owns how workers are told. What they say about themselves is kept by the engine.
"""

from __future__ import annotations

import click

from onetray.cli.options import common, limit_option, opened
from onetray.cli.output import print_json
from onetray.cli.tables import print_table
from onetray.cli.words import moment


@click.command(short_help="List the workers.")
@click.option("--alive", is_flag=True, help="Only those that have been heard of in time.")
@limit_option
@common
def workers(alive: bool, limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the workers, the newest first. One that is silent has not been heard of in time: what it held comes back."""
    with opened(database) as engine:
        found, now = engine.workers(namespace=namespace, limit=limit), engine.now()
    found = [w for w in found if w.alive or not alive]
    if as_json:
        print_json(found)
        return
    print_table(
        ("worker", "state", "running", "queues", "kinds", "host", "pid", "version", "heard of", "since"),
        [
            (
                w.name, w.state if w.alive else "silent", f"{w.running} of {w.concurrency}", ", ".join(w.queues),
                ", ".join(w.kinds) or "all", w.host, w.pid, w.version, moment(w.beat_at, now),
                moment(w.started_at, now),
            )
            for w in found
        ],
    )  # fmt: skip
