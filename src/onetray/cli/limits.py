"""`onetray limits`: list and show limits, change them while workers run, and set the weights of fair queues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from onetray.cli import BadInput
from onetray.cli.completion import complete_kinds, complete_limits, complete_queues
from onetray.cli.format import moment
from onetray.cli.jobs.act import reason_option
from onetray.cli.options import acting_user, common, limit_option, opened
from onetray.cli.output import print_json, print_json_list
from onetray.cli.tables import print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.limits import LimitDetails, LimitHolder, LimitValue
    from onetray.engine.api import EngineApi

_queue_option = click.option("--queue", shell_complete=complete_queues, metavar="NAME", help="Of this queue.")
_kind_option = click.option("--kind", shell_complete=complete_kinds, metavar="NAME", help="Of this kind of task.")
_id_argument = click.argument("id", type=click.IntRange(1, 2**62), shell_complete=complete_limits)


@click.group(short_help="List limits, change them live, set weights.")
def limits() -> None:
    """List and show limits, change them while workers run, and set the weights of fair queues.

    A concurrency limits how many tasks run at once, a rate how many start within a period, over all workers.
    """


@limits.command("list", short_help="List the limits.")
@_queue_option
@_kind_option
@limit_option
@common
def list_(
    queue: str | None, kind: str | None, limit: int, database: str, namespace: str, as_json: bool
) -> None:  # fmt: skip
    """List the limits of a namespace, of a queue or of a kind, with how much of each is used."""
    with opened(database) as engine:
        found, now = engine.limits(queue=queue, kind=kind, namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json_list("limits", found, limit)
        return
    print_table(
        ("id", "limit", "allows", "running", "waiting", "next start", "set by"),
        [
            (
                each.id, each.name, each.numbers, "" if each.per_s is not None else f"{each.running:,}",
                f"{each.waiting:,}" + ("+" if each.waiting >= MOST_COUNTED else ""), moment(each.next_start_at, now),
                _set_by(each, now),
            )
            for each in found
        ],
        empty=f"there are no limits in the namespace {namespace}: declare them in code, or use `onetray limits set`",
    )  # fmt: skip


MOST_COUNTED = 1_000
"""Where the engine's count of waiting tasks ends."""


def _set_by(limit: LimitDetails, now: int) -> str:
    if limit.set_by is None:
        return "code"
    code = f"; code: {limit.declared_numbers}" if limit.declared_numbers else ""
    return f"{limit.set_by}, {moment(limit.set_at, now)}{code}"


@limits.command(short_help="Show who uses a limit.")
@_id_argument
@click.option("--value", metavar="VALUE", help="Of a limit with a key: show who holds the slots of this value.")
@click.option("--after", type=click.IntRange(0, 2**62), default=0, metavar="CURSOR", help="`next` of the last page.")
@limit_option
@common
def show(
    id: int, value: str | None, after: int, limit: int, database: str, namespace: str, as_json: bool
) -> None:  # fmt: skip
    """Show the limit ID: its numbers, the values of its key, and the tasks that hold its slots.

    VALUE is JSON; other text is taken as a string.
    """
    with opened(database) as engine:
        found, now = engine.limit(id, namespace=namespace), engine.now()
        page: list[LimitValue] = []
        holders: list[LimitHolder] = []
        if found.key is not None and value is None:
            page = engine.limit_values(id, after=after, limit=limit, namespace=namespace)
        else:
            text = None if value is None else _json(value)
            holders = engine.limit_holders(id, value=text, after=after, limit=limit, namespace=namespace)
    next_ = page[-1].cursor if len(page) == limit else after + limit if len(holders) == limit else None
    if as_json:
        print_json({"limit": found, "values": page, "holders": holders, "more": next_ is not None, "next": next_})
        return
    _print_limit(found, now)
    if page:
        print_table(
            ("value", "started" if found.per_s is not None else "running", "waiting lanes", "since", "next start"),
            [
                (json.dumps(v.value, ensure_ascii=False), v.running, v.blocked, moment(v.blocked_since, now),
                 moment(v.next_start_at, now))
                for v in page
            ],
        )  # fmt: skip
    if holders:
        print_table(
            ("task", "kind", "queue", "state", "worker", "since", "lease until"),
            [
                (h.task, h.kind, h.queue, h.state, h.worker, moment(h.claimed_at, now), moment(h.lease_expires_at, now))
                for h in holders
            ],
        )
    if next_ is not None:
        click.echo(f"there may be more: --after {next_}", err=True)


def _print_limit(limit: LimitDetails, now: int) -> None:
    print_facts([
        ("limit", limit.id), ("of", limit.name), ("allows", limit.numbers),
        ("running", None if limit.per_s is not None else f"{limit.running:,}"), ("waiting", f"{limit.waiting:,}"),
        ("next start", moment(limit.next_start_at, now)), ("set by", _set_by(limit, now)),
        ("counting", "the tasks that run already are still being counted" if limit.counting else None),
    ])  # fmt: skip


@limits.command("set", short_help="Set a limit, at once.")
@_queue_option
@_kind_option
@click.option("--key", metavar="PATH", help="For each value of this path in the payload. The kind declares it in code.")
@click.option(
    "--concurrency", type=click.IntRange(0), metavar="N", help="How many tasks run at once; 0 holds all back."
)
@click.option("--rate", metavar="N/PERIOD", help="How many start within a period: 10/s, 100/m, 1000/h, 50/5m.")
@click.option("--smooth", is_flag=True, help="Spread the starts of a rate over its period.")
@reason_option
@common
def set_(
    queue: str | None, kind: str | None, key: str | None, concurrency: int | None, rate: str | None, smooth: bool,
    reason: str | None, database: str, namespace: str, as_json: bool,
) -> None:  # fmt: skip
    """Set a limit of a queue or of a kind, over all workers. It takes effect at once.

    It has precedence over what the code declares, until `onetray limits reset`. Tasks that run go on: a limit that is
    lowered holds back new ones.

    \b
    onetray limits set --queue mail --concurrency 10
    onetray limits set --kind send --key tenant --concurrency 3
    onetray limits set --kind send --rate 100/m --smooth
    """
    if (queue is None) == (kind is None):
        raise BadInput("a limit is for a queue or for a kind: pass --queue or --kind")
    if (concurrency is None) == (rate is None):
        raise BadInput("a limit is a concurrency or a rate: pass --concurrency or --rate")
    if smooth and rate is None:
        raise BadInput("--smooth is for a rate: pass --rate")
    with opened(database) as engine:
        limit_id = engine.set_limit(
            queue=queue, kind=kind, key=key, concurrency=concurrency, rate=rate, smooth=smooth, reason=reason,
            by=acting_user()["actor_name"], namespace=namespace,
        )  # fmt: skip
        _print_changed(engine, limit_id, namespace, as_json)


@limits.command(short_help="Return to the numbers of the code.")
@_id_argument
@reason_option
@common
def reset(id: int, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Return the limit ID to the numbers that the code declares."""
    with opened(database) as engine:
        engine.reset_limit(id, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
        _print_changed(engine, id, namespace, as_json)


def _print_changed(engine: EngineApi, limit_id: int, namespace: str, as_json: bool) -> None:
    changed = engine.limit(limit_id, namespace=namespace)
    print_json(changed) if as_json else click.echo(f"limit {changed.id}: {changed.name}, {changed.numbers}")


@limits.command(short_help="Remove a limit that is not in the code.")
@_id_argument
@reason_option
@common
def remove(id: int, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Remove the limit ID, which `onetray limits set` has added."""
    with opened(database) as engine:
        engine.remove_limit(id, reason=reason, by=acting_user()["actor_name"], namespace=namespace)
    print_json({"limit": id, "removed": True}) if as_json else click.echo(f"limit {id} is removed")


@limits.command(short_help="Set the share of a value; list the shares.")
@click.argument("kind", shell_complete=complete_kinds, required=False)
@click.argument("value", required=False)
@click.argument("weight", type=float, required=False)
@reason_option
@limit_option
@common
def weight(
    kind: str | None, value: str | None, weight: float | None, reason: str | None, limit: int, database: str,
    namespace: str, as_json: bool,
) -> None:  # fmt: skip
    """Set the share of VALUE among the values that KIND is fair by: 2 is twice as much as the default, 1.

    VALUE is JSON; other text is taken as a string. Without VALUE, list the weights that are set.

    \b
    onetray limits weight send acme 2
    """
    if value is not None and weight is None:
        raise BadInput("pass the weight, too: `onetray limits weight KIND VALUE WEIGHT`")
    with opened(database) as engine:
        if kind is None or value is None or weight is None:
            _print_weights(engine, kind, namespace, limit, as_json)
            return
        by = acting_user()["actor_name"]
        engine.set_weight(kind, _json(value), weight, reason=reason, by=by, namespace=namespace)
    shown = {"kind": kind, "value": json.loads(_json(value)), "weight": weight}
    print_json(shown) if as_json else click.echo(f"{_json(value)} of kind {kind} has the weight {weight:g}")


def _print_weights(engine: EngineApi, kind: str | None, namespace: str, limit: int, as_json: bool) -> None:
    found = engine.weights(kind=kind, namespace=namespace, limit=limit)
    if as_json:
        print_json_list("weights", found, limit)
        return
    rows: list[tuple[Any, ...]] = [(w.kind, json.dumps(w.value, ensure_ascii=False), f"{w.weight:g}") for w in found]
    print_table(("kind", "value", "weight"), rows, empty="no weights are set: each value has the weight 1")


def _json(value: str) -> str:
    """A value as JSON: it is JSON already, or else a string."""
    try:
        json.loads(value)
    except ValueError:
        return json.dumps(value)
    return value
