"""`onetray token`: who may call a server, and for what.

Owns how tokens are told. A token is printed once, alone on the output, so that a script can take it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli.format import age, moment
from onetray.cli.options import common, database_option, json_option, limit_option, opened_database
from onetray.cli.output import jsonable, print_json
from onetray.cli.tables import one_line, print_table

if TYPE_CHECKING:
    from onetray.domain.token import Token


def scopes(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """What a token is for: names with commas in between."""
    from onetray.domain.token import SCOPES

    named = value if isinstance(value, tuple) else tuple(part.strip() for part in value.split(","))
    for name in named:
        if name not in SCOPES:
            raise click.BadParameter(f"{name!r} is no scope: there are {', '.join(SCOPES)}")
    return tuple(dict.fromkeys(named))


@click.group(short_help="Create, list and revoke the tokens of a server.")
def token() -> None:
    """Create, list and revoke tokens: who may call a server on this database, and for what.

    Once there is a token, no server on the database answers anybody without one.
    """


@token.command(short_help="Create a token, and print it this once.")
@click.option("--name", required=True, help="Whose it is. Events that it causes carry this name.")
@click.option(
    "--scope",
    type=scopes,
    required=True,
    metavar="SCOPE,…",
    help="What it is for: read, submit, work, operate, admin; several with commas.",
)
@click.option("--expires", type=age, metavar="AGE", help="After this time: 90s, 15m, 2h, 30d. Otherwise never.")
@common
def create(
    name: str, scope: tuple[str, ...], expires: float | None, database: str, namespace: str, as_json: bool
) -> None:
    """Create a token and print it. It is shown this once: only its hash is kept.

    It works in one namespace, the one that --namespace names.
    """
    with opened_database(database, create=True) as engine:
        new = engine.tokens.create(name, scope, namespace=namespace, expires_s=expires)
        now = engine.store.now()
    if as_json:
        print_json({**_row(new.token), "token": new.text})
        return
    click.echo(new.text)
    until = "never expires" if new.token.expires_at is None else f"expires {moment(new.token.expires_at, now)}"
    click.echo(
        f"token {new.token.id} for {one_line(name)} in the namespace {one_line(namespace)}: "
        f"{', '.join(new.token.scopes)}; {until}. It is not shown again.",
        err=True,
    )


@token.command("list", short_help="List the tokens.")
@click.option("--namespace", metavar="NAME", help="Only those of this namespace.")
@limit_option
@database_option
@json_option
def list_(namespace: str | None, limit: int, database: str, as_json: bool) -> None:
    """List the tokens of all namespaces, the newest first. The tokens themselves are kept nowhere."""
    with opened_database(database) as engine:
        found, now = engine.tokens.list(namespace=namespace, limit=limit), engine.store.now()
    if as_json:
        print_json([_row(t) for t in found])
        return
    print_table(
        ("id", "name", "namespace", "scopes", "state", "used", "created", "expires"),
        [
            (
                t.id, t.name, t.namespace, ",".join(t.scopes), _state(t, now), moment(t.used_at, now),
                moment(t.created_at, now), moment(t.expires_at, now),
            )
            for t in found
        ],
    )  # fmt: skip


@token.command(short_help="Revoke a token.")
@click.argument("id")
@database_option
@json_option
def revoke(id: str, database: str, as_json: bool) -> None:
    """Revoke the token with this ID, or the whole token. Servers refuse it within 5 seconds."""
    from onetray.domain.token import parts_of

    parts = parts_of(id)
    with opened_database(database) as engine:
        revoked = engine.tokens.revoke(id if parts is None else parts.id)
    print_json(_row(revoked)) if as_json else click.echo(f"token {revoked.id} ({one_line(revoked.name)}) is revoked")


def _row(token: Token) -> dict[str, Any]:
    return {name: value for name, value in jsonable(token).items() if name != "hash"}


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "good"
