"""Options that commands share, and how a command opens its engine.

The database and the namespace come from the option, else from the settings. Imports are late, so that help is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import BadInput, DatabaseUnusable
from onetray.config import plain_url, without_password

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine import Engine
    from onetray.engine.api import EngineApi
    from onetray.remote.engine import RemoteEngine
    from onetray.settings import Settings
    from onetray.store.base import Store

Command = TypeVar("Command", bound=Callable[..., Any])

SERVER = ("http://", "https://")
SCHEMES = ("sqlite:///", "sqlite://:memory:", "postgresql://", "postgres://", *SERVER)
MAX_LISTED = 10_000


def _database_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    url = plain_url(value if value is not None else settings().database)
    if not url.startswith(SCHEMES):
        raise click.BadParameter(
            "write sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/name or http://host:port"
        )
    return url


def _namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return value if value is not None else settings().namespace


def settings() -> Settings:
    from onetray.domain.errors import InvalidInput
    from onetray.settings import load

    try:
        return load().settings
    except InvalidInput as e:
        raise click.UsageError(str(e)) from e


database_option = click.option(
    "--database",
    metavar="URL",
    envvar="ONETRAY_DATABASE",
    show_envvar=True,
    callback=_database_url,
    help="sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/name, or a server: http://host:port.",
)
namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    envvar="ONETRAY_NAMESPACE",
    show_envvar=True,
    callback=_namespace,
    help="The namespace to use.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True, help="The maximum number of items."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def common(command: Command) -> Command:
    """The options of every command about jobs: --database, --namespace, --json."""
    return database_option(namespace_option(json_option(command)))


def json_value(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError as e:
        raise click.BadParameter(f"not valid JSON ({e}); a string needs its own quotes: '\"text\"'") from None


def label(value: str) -> tuple[str, str]:
    name, equals, content = value.partition("=")
    if not name or not equals or not content:
        raise click.BadParameter(f"{value!r} is not a label: write NAME=VALUE")
    return name, content


@contextmanager
def opened_store(url: str, *, create: bool) -> Iterator[Store]:
    """Open the database without migrating it."""
    from onetray.domain.errors import StoreError
    from onetray.store import open_store

    if url.startswith(SERVER):
        raise DatabaseUnusable(f"this command needs the database itself, but {url} is a server: pass its database URL")
    options: dict[str, Any] = {}
    if url.startswith("postgres"):
        check_connection(url)
        config = settings().engine
        options = {"pooler": config.pooler, "patience_s": config.call_timeout_s}
    try:
        store = open_store(url, create=create, migrate=False, **options)
    except StoreError as e:
        hint = "check --database" if create else "check --database, or create it with `onetray migrate`"
        raise DatabaseUnusable(f"{e}: {hint}") from e
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[EngineApi]:
    """Open an engine with redacted answers on a server, or on an existing, migrated database. With `create`, a SQLite
    file is created and migrated."""
    if url.startswith(SERVER):
        with _at_server(url) as engine:
            yield engine
        return
    with opened_database(url, create=create) as database:
        yield database.redacted


@contextmanager
def opened_database(url: str, *, create: bool = False) -> Iterator[Engine]:
    """Open an unredacted engine on a database. With `create`, a SQLite file is created and migrated."""
    from onetray.engine import Engine

    with opened_store(url, create=create) as store:
        if create and store.dialect == "sqlite":
            store.migrate()
        engine = Engine(store, config=settings().engine)
        try:
            yield engine
        finally:
            engine.close()


def database_of(app: Onetray) -> Engine:
    """The engine of an app. Raises DatabaseUnusable if the app uses a server."""
    from onetray.engine import Engine

    engine = app.engine
    if not isinstance(engine, Engine):
        raise DatabaseUnusable(f"this needs the database itself, but {app.database} is a server: pass its database URL")
    return engine


@contextmanager
def _at_server(url: str) -> Iterator[RemoteEngine]:
    """Open the engine of a server. Tries to connect only once, so that a wrong address fails at once."""
    from onetray.remote.engine import RemoteEngine

    with RemoteEngine(url, config=settings().engine, redacted=True) as engine:
        engine.introduce(patience_s=0.0)
        yield engine


def check_connection(url: str) -> None:
    """Connect once before the pool does: the pool would try for 15 seconds and then not say why it failed."""
    import logging
    from importlib import import_module

    import_module("onetray.store.postgres")  # Raises MissingExtra if psycopg is not installed.
    import psycopg

    # Without a handler the pool's warnings would be printed beside the error message.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.Error as e:
        raise DatabaseUnusable(f"check --database: PostgreSQL does not answer at {without_password(url)}: {e}") from e


def acting_user() -> dict[str, str]:
    """The user's login name, as the `actor_name` of commands."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = "anonymous"
    return {"actor_name": name[:200] or "anonymous"}


def confirm(question: str, yes: bool) -> None:
    """Ask before an action that cannot be undone. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} There is no terminal to answer on: pass --yes to confirm")
    if not click.confirm(question, err=True):
        raise click.Abort
