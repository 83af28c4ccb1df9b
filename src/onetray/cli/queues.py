"""`onetray queues`: how much waits where; hold a queue back and let it go.

Owns nothing but the commands.
"""

from __future__ import annotations

import click

from onetray.cli import Absent
from onetray.cli.format import age, duration, moment
from onetray.cli.options import common, limit_option, opened, who
from onetray.cli.output import print_json
from onetray.cli.tables import print_table


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
                "" if q.oldest_ready_at is None else duration(max(now - q.oldest_ready_at, 0)),
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


@click.group(short_help="See circuit breakers, open and close them.")
def breakers() -> None:
    """See which kinds are left alone because their attempts keep failing; open and close a breaker by hand."""


@breakers.command("list", short_help="List the breakers.")
@limit_option
@common
def list_breakers(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the breakers: while one is open, no task of its kind is claimed."""
    with opened(database) as engine:
        found, now = engine.breakers(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json(found)
        return
    print_table(
        ("kind", "state", "failures", "opened", "open until", "by", "why"),
        [
            (b.kind, b.state, b.failures, moment(b.opened_at, now), moment(b.open_until, now), b.opened_by, b.why)
            for b in found
        ],
    )


@breakers.command("open", short_help="Leave a kind alone for a while.")
@click.argument("kind")
@click.option("--for", "for_s", type=age, metavar="AGE", required=True, help="For how long: 90s, 15m, 2h, 30d.")
@click.option("--reason", default="opened by hand", show_default=True, help="Why. It is shown to whoever asks.")
@common
def open_(kind: str, for_s: float, reason: str, database: str, namespace: str, as_json: bool) -> None:
    """Let no task of KIND be claimed for a while. What runs goes on; afterwards one is tried first."""
    with opened(database) as engine:
        engine.open_breaker(kind, for_s=for_s, by=who()["actor_name"], why=reason, namespace=namespace)
    print_json({"kind": kind, "state": "open"}) if as_json else click.echo(f"the breaker of {kind} is open")


@breakers.command(short_help="Let a kind be claimed again.")
@click.argument("kind")
@common
def close(kind: str, database: str, namespace: str, as_json: bool) -> None:
    """Let tasks of KIND be claimed again, and forget the failures that were counted."""
    with opened(database) as engine:
        engine.close_breaker(kind, namespace=namespace)
    print_json({"kind": kind, "state": "closed"}) if as_json else click.echo(f"the breaker of {kind} is closed")
