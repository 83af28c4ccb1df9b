"""`onetray queues`, `workers` and `breakers`: list them; pause and resume queues; open and close breakers.

Also `onetray events`: the events of a namespace, which record these changes.
"""

from __future__ import annotations

import click

from onetray.cli import Absent
from onetray.cli.completion import complete_kinds, complete_queues
from onetray.cli.format import age, moment
from onetray.cli.jobs.act import reason_option
from onetray.cli.jobs.follow import PAGE, print_event
from onetray.cli.options import acting_user, common, limit_option, opened
from onetray.cli.output import print_json, print_json_line, print_json_list
from onetray.cli.tables import print_table
from onetray.domain.clock import duration


@click.group(short_help="List queues; pause and resume one.")
def queues() -> None:
    """List queues with the number of their tasks; pause and resume a queue."""


@queues.command("list", short_help="List the queues.")
@limit_option
@common
def list_(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the queues.

    Workers can claim ready tasks now, but for those that limits hold back, and delayed tasks later. Held tasks are
    claimed or running.
    """
    with opened(database) as engine:
        depths, now = engine.queues(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json_list("queues", depths, limit)
        return
    print_table(
        ("queue", "ready", "limited", "delayed", "held", "oldest ready", "paused"),
        [
            (
                q.name, f"{q.ready:,}", f"{q.limited:,}", f"{q.delayed:,}", f"{q.held:,}",
                "" if q.oldest_ready_at is None else duration(max(now - q.oldest_ready_at, 0)),
                "" if q.paused_at is None else f"by {q.paused_by}, {moment(q.paused_at, now)}",
            )
            for q in depths
        ],
        empty=f"there are no queues in the namespace {namespace}: the first task of a queue creates it",
    )  # fmt: skip


@queues.command(short_help="Stop claims from a queue.")
@click.argument("name", shell_complete=complete_queues)
@click.option("--create", is_flag=True, help="Create the queue if no task was ever submitted to it.")
@reason_option
@common
def pause(name: str, create: bool, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Stop claims from the queue NAME. Running tasks continue."""
    with opened(database) as engine:
        known = [q.name for q in engine.queues(namespace=namespace)]
        if name not in known and not create:
            raise Absent(
                f"there is no queue {name!r}; {_list_known(known)}. To pause it before its first task: --create"
            )
        engine.pause_queue(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    print_json({"queue": name, "paused": True}) if as_json else click.echo(f"queue {name} is paused")


@queues.command(short_help="Resume a paused queue.")
@click.argument("name", shell_complete=complete_queues)
@reason_option
@common
def resume(name: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Allow claims from the queue NAME again."""
    with opened(database) as engine:
        known = [q.name for q in engine.queues(namespace=namespace)]
        if name not in known:
            raise Absent(f"there is no queue {name!r}; {_list_known(known)}")
        engine.resume_queue(name, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    print_json({"queue": name, "paused": False}) if as_json else click.echo(f"queue {name} is open for claims")


def _list_known(known: list[str]) -> str:
    return f"known queues: {', '.join(known[:20])}" if known else "there is none yet"


@click.command(short_help="List the workers.")
@click.option("--alive", is_flag=True, help="Only workers whose heartbeat is not overdue.")
@limit_option
@common
def workers(alive: bool, limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the workers, newest first.

    A worker is silent if its heartbeat is overdue. Its tasks return to their queues when their leases expire.
    """
    with opened(database) as engine:
        found, now = engine.workers(namespace=namespace, limit=limit), engine.now()
    listed = [w for w in found if w.alive or not alive]
    if as_json:
        print_json_list("workers", listed, limit - len(found) + len(listed))
        return
    print_table(
        ("worker", "state", "running", "queues", "kinds", "host", "pid", "version", "last heartbeat", "since"),
        [
            (
                w.name, w.state if w.alive else "silent", f"{w.running} of {w.concurrency}", ", ".join(w.queues),
                ", ".join(w.kinds) or "all", w.host, w.pid, w.version, moment(w.beat_at, now),
                moment(w.started_at, now),
            )
            for w in listed
        ],
        empty=f"no worker of the namespace {namespace} is {'alive' if alive else 'registered'}: "
        "start one with `onetray worker --app MODULE:APP`",
    )  # fmt: skip


@click.group(short_help="List circuit breakers; open and close one.")
def breakers() -> None:
    """List circuit breakers, which stop claims of a kind whose attempts keep failing; open and close one by hand."""


@breakers.command("list", short_help="List the breakers.")
@limit_option
@common
def list_breakers(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the breakers. While one is open, no task of its kind is claimed."""
    with opened(database) as engine:
        listed, now = engine.breakers(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json_list("breakers", listed, limit)
        return
    print_table(
        ("kind", "state", "failures", "opened", "open until", "by", "why"),
        [
            (b.kind, b.state, b.failures, moment(b.opened_at, now), moment(b.open_until, now), b.opened_by, b.why)
            for b in listed
        ],
        empty="there are no breakers: no task whose kind has breaker_failures in its policy has failed",
    )


@breakers.command("open", short_help="Stop claims of a kind for a while.")
@click.argument("kind", shell_complete=complete_kinds)
@click.option("--for", "for_s", type=age, metavar="AGE", required=True, help="For how long: 90s, 15m, 2h, 30d.")
@click.option(
    "--reason", default="opened by hand", show_default=True, help="Why; shown by `breakers list` and `jobs explain`."
)
@common
def open_(kind: str, for_s: float, reason: str, database: str, namespace: str, as_json: bool) -> None:
    """Stop claims of KIND for a while. Running tasks continue. Afterwards one task is claimed as a probe."""
    with opened(database) as engine:
        engine.open_breaker(kind, for_s=for_s, by=acting_user()["actor_name"], why=reason, namespace=namespace)
    print_json({"kind": kind, "state": "open"}) if as_json else click.echo(f"the breaker of {kind} is open")


@breakers.command(short_help="Allow claims of a kind again.")
@click.argument("kind", shell_complete=complete_kinds)
@common
def close(kind: str, database: str, namespace: str, as_json: bool) -> None:
    """Allow claims of KIND again, and reset its count of failures."""
    with opened(database) as engine:
        engine.close_breaker(kind, by=acting_user()["actor_name"], namespace=namespace)
    print_json({"kind": kind, "state": "closed"}) if as_json else click.echo(f"the breaker of {kind} is closed")


@click.command(short_help="Print the events of a namespace.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only events of this type: task.failed.")
@click.option("--audit", is_flag=True, help="Only changes of queues, breakers and tokens.")
@click.option("--tokens", is_flag=True, help="Include events about tokens. On a server, this needs the scope admin.")
@click.option(
    "--after", type=click.IntRange(0, 2**62), default=0, metavar="CURSOR", help="Begin after the event with this id."
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new events until interrupted.")
@common
def events(
    types: tuple[str, ...],
    audit: bool,
    tokens: bool,
    after: int,
    follow: bool,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Print the events of a namespace in order, one on each line: of its jobs, queues, breakers and tokens."""
    from onetray.domain.lifecycle import AUDIT_TYPES

    wanted = [*types, *(AUDIT_TYPES if audit else ())]
    show = print_json_line if as_json else print_event
    with opened(database) as engine:
        while True:
            seen = engine.wake.generation
            page = engine.events_since(
                after=after, types=wanted, limit=PAGE, tokens=tokens or None, namespace=namespace
            )
            for event in page.events:
                show(event)
            if page.next_cursor == after:
                if not follow:
                    return
                engine.wake.wait(seen, engine.wake.poll_s)
            after = page.next_cursor
