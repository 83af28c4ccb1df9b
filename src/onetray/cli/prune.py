"""`onetray prune`: remove old jobs for good, in bounded steps.

Owns the loop. What may be removed is the janitor's to say.
"""

from __future__ import annotations

import click

from onetray.cli.options import common, confirm, opened, yes_option
from onetray.cli.output import print_json, progress
from onetray.cli.words import age, count

STEP = 500


@click.command(short_help="Remove old jobs for good.")
@click.option("--older-than", type=age, metavar="AGE", required=True, help="Since their end: 90s, 15m, 2h, 30d.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@yes_option
@common
def prune(older_than: float, dry_run: bool, yes: bool, database: str, namespace: str, as_json: bool) -> None:
    """Remove whole jobs that ended long enough ago, with their events, logs and dead letters. It asks first.

    What has not ended stays, and so does a job whose idempotency key still lives.
    """
    with opened(database) as engine:
        found = engine.prunable(older_than, namespace=namespace)
        total, removed = sum(found), 0
        words = f"{count(found.tasks, 'task')} and {count(found.flows, 'flow')}"
        if total and not dry_run:
            confirm(f"Remove {words} for good?", yes)
            with progress("removing", total) as step:
                while keys := engine.prune(older_than, namespace=namespace, limit=STEP):
                    removed += len(keys)
                    step(len(keys))
    if as_json:
        print_json({"tasks": found.tasks, "flows": found.flows, "removed": removed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would remove {words}")
    else:
        click.echo(f"removed {count(removed, 'job')}")
