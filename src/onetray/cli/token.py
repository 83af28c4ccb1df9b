"""`onetray token`: create, list and revoke API tokens.

`create` prints only the token on stdout, so that a script can read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli.format import age, moment
from onetray.cli.options import acting_user, common, database_option, json_option, limit_option, opened_database
from onetray.cli.output import jsonable, print_json, print_json_list
from onetray.cli.tables import one_line, print_table

if TYPE_CHECKING:
    from onetray.domain.token import Token


def scopes(value: str | tuple[str, ...]) -> tuple[str, ...]:
    from onetray.domain.token import SCOPES

    names = value if isinstance(value, tuple) else tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in SCOPES:
            raise click.BadParameter(f"{name!r} is not a scope: use {', '.join(SCOPES)}")
    return tuple(dict.fromkeys(names))


@click.group(short_help="Create, list and revoke API tokens.")
def token() -> None:
    """Create, list and revoke tokens for the servers on this database.

    As soon as a token exists, these servers reject every request without one.
    """


@token.command(short_help="Create a token and print it once.")
@click.option("--name", required=True, help="The token's owner: the actor of the events that it causes.")
@click.option(
    "--scope",
    type=scopes,
    required=True,
    metavar="SCOPE,…",
    help="What it allows: read, submit, work, operate, admin; separate several with commas.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="A group of its owner, who may then answer the group's approvals.",
)
@click.option("--expires", type=age, metavar="AGE", help="Expires after this time: 90s, 15m, 2h, 30d. Default: never.")
@common
def create(
    name: str,
    scope: tuple[str, ...],
    groups: tuple[str, ...],
    expires: float | None,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """Create a token and print it. It cannot be printed again: the database stores only its hash.

    It is valid in one namespace: that of --namespace.
    """
    with opened_database(database, create=True) as engine:
        new = engine.tokens.create(
            name, scope, namespace=namespace, expires_s=expires, groups=groups, by=acting_user()["actor_name"]
        )
        now = engine.store.now()
    if as_json:
        print_json({**_row(new.token), "token": new.text})
        return
    click.echo(new.text)
    until = "never expires" if new.token.expires_at is None else f"expires {moment(new.token.expires_at, now)}"
    click.echo(
        f"token {new.token.id} for {one_line(name)} in the namespace {one_line(namespace)}: "
        f"{', '.join(new.token.scopes)}{_in_groups(new.token)}; {until}. It cannot be printed again.",
        err=True,
    )


@token.command("list", short_help="List the tokens.")
@click.option("--namespace", metavar="NAME", help="Only tokens of this namespace.")
@limit_option
@database_option
@json_option
def list_(namespace: str | None, limit: int, database: str, as_json: bool) -> None:
    """List the tokens of all namespaces, newest first, without their secrets."""
    with opened_database(database) as engine:
        tokens, now = engine.tokens.list(namespace=namespace, limit=limit), engine.store.now()
    if as_json:
        print_json_list("tokens", [_row(t) for t in tokens], limit)
        return
    print_table(
        ("id", "name", "namespace", "scopes", "groups", "state", "used", "created", "expires"),
        [
            (
                t.id, t.name, t.namespace, ",".join(t.scopes), ",".join(map(one_line, t.groups)), _state(t, now),
                moment(t.used_at, now), moment(t.created_at, now), moment(t.expires_at, now),
            )
            for t in tokens
        ],
        empty="there are no tokens: create one with `onetray token create --name NAME --scope SCOPE`",
    )  # fmt: skip


@token.command(short_help="Revoke a token.")
@click.argument("id")
@database_option
@json_option
def revoke(id: str, database: str, as_json: bool) -> None:
    """Revoke a token by its ID or its full text. Servers reject it within 5 seconds."""
    from onetray.domain.token import parts_of

    parts = parts_of(id)
    with opened_database(database) as engine:
        revoked = engine.tokens.revoke(id if parts is None else parts.id, by=acting_user()["actor_name"])
    print_json(_row(revoked)) if as_json else click.echo(f"token {revoked.id} ({one_line(revoked.name)}) is revoked")


def _row(token: Token) -> dict[str, Any]:
    return {name: value for name, value in jsonable(token).items() if name != "hash"}


def _in_groups(token: Token) -> str:
    return f"; in {', '.join(map(one_line, token.groups))}" if token.groups else ""


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "good"
