"""`onetray queues`: how much waits where; hold a queue back and let it go.

Owns nothing but the commands.
"""

from __future__ import annotations

import click

from onetray.cli import Absent
from onetray.cli.options import common, limit_option, opened, who
from onetray.cli.output import print_json
from onetray.cli.tables import print_table
from onetray.cli.words import moment, span


@click.group(short_help="See what waits in the queues; pause and resume them.")
def queues() -> None:
    """See what waits in the queues, hold one back, let it go."""


@queues.command("list", short_help="List the queues.")
@limit_option
@common
def list_(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the queues.

    Ready tasks can be claimed now, delayed ones later; held are those that a worker has.
    """
    with opened(database) as engine:
        found, now = engine.queues(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json(found)
        return
    print_table(
        ("queue", "ready", "delayed", "held", "oldest ready", "paused"),
        [
            (
                q.name, f"{q.ready:,}", f"{q.delayed:,}", f"{q.held:,}",
                "" if q.oldest_ready_at is None else span(max(now - q.oldest_ready_at, 0)),
                "" if q.paused_at is None else f"by {q.paused_by}, {moment(q.paused_at, now)}",
            )
            for q in found
        ],
    )  # fmt: skip


@queues.command(short_help="Let nothing more be claimed from a queue.")
@click.argument("name")
@click.option("--create", is_flag=True, help="Also when nothing was ever submitted to it.")
@common
def pause(name: str, create: bool, database: str, namespace: str, as_json: bool) -> None:
    """Let nothing more be claimed from the queue NAME. What runs goes on."""
    with opened(database) as engine:
        known = [q.name for q in engine.queues(namespace=namespace)]
        if name not in known and not create:
            raise Absent(
                f"there is no queue {name!r}; {_there_are(known)}. To pause it before its first task: --create"
            )
        engine.pause_queue(name, by=who()["actor_name"], namespace=namespace)
    print_json({"queue": name, "paused": True}) if as_json else click.echo(f"queue {name} is paused")


@queues.command(short_help="Let a paused queue go.")
@click.argument("name")
@common
def resume(name: str, database: str, namespace: str, as_json: bool) -> None:
    """Let tasks of the queue NAME be claimed again."""
    with opened(database) as engine:
        known = [q.name for q in engine.queues(namespace=namespace)]
        if name not in known:
            raise Absent(f"there is no queue {name!r}; {_there_are(known)}")
        engine.resume_queue(name, namespace=namespace)
    print_json({"queue": name, "paused": False}) if as_json else click.echo(f"queue {name} is not paused")


def _there_are(known: list[str]) -> str:
    return f"there are: {', '.join(known[:20])}" if known else "there is none yet"
