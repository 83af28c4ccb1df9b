"""`onetray breakers`: kinds that are left alone for a while because their attempts keep failing.

Owns nothing but the commands. When a breaker opens and closes by itself is the engine's to say.
"""

from __future__ import annotations

import click

from onetray.cli.options import common, limit_option, opened, who
from onetray.cli.output import print_json
from onetray.cli.tables import print_table
from onetray.cli.words import age, moment


@click.group(short_help="See circuit breakers, open and close them.")
def breakers() -> None:
    """See which kinds are left alone because their attempts keep failing; open and close a breaker by hand."""


@breakers.command("list", short_help="List the breakers.")
@limit_option
@common
def list_(limit: int, database: str, namespace: str, as_json: bool) -> None:
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
