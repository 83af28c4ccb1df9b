"""The options that commands share, and how a command gets to its engine.

Owns where the database and the namespace come from: the option, else the settings. What only some commands need is
loaded by them, so that help comes at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import BadInput, DatabaseUnusable

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
MOST_LISTED = 10_000


def _database_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    url = value if value is not None else _settings().database
    if not url.startswith(SCHEMES):
        raise click.BadParameter(
            "write sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/name or http://host:port"
        )
    return url


def _namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return value if value is not None else _settings().namespace


def _settings() -> Settings:
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
    help="Where to look.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, MOST_LISTED), default=50, show_default=True, help="How many at most."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def common(command: Command) -> Command:
    """What every command about jobs takes: --database, --namespace, --json."""
    return database_option(namespace_option(json_option(command)))


def json_value(value: str) -> Any:
    """JSON that stands on the command line."""
    import json

    try:
        return json.loads(value)
    except ValueError as e:
        raise click.BadParameter(f"that is no JSON ({e}); text needs quotes of its own: '\"text\"'") from None


def label(value: str) -> tuple[str, str]:
    """A label: its name and its value."""
    name, equals, content = value.partition("=")
    if not name or not equals or not content:
        raise click.BadParameter(f"{value!r} is no label: write NAME=VALUE")
    return name, content


@contextmanager
def opened_store(url: str, *, create: bool) -> Iterator[Store]:
    """The database as it stands: opening it migrates nothing."""
    from onetray.domain.errors import StoreError
    from onetray.store import open_store

    if url.startswith(SERVER):
        raise DatabaseUnusable(
            f"this needs the database itself, and {url} is a server: give the --database that it has"
        )
    options: dict[str, Any] = {}
    if url.startswith("postgres"):
        must_answer(url)
        config = _settings().engine
        options = {"pooler": config.pooler, "patience_s": config.call_timeout_s}
    try:
        store = open_store(url, create=create, migrate=False, **options)
    except StoreError as e:
        hint = "check --database" if create else "check --database, or make it with `onetray migrate`"
        raise DatabaseUnusable(f"{e}: {hint}") from e
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened(url: str, *, create: bool = False) -> Iterator[EngineApi]:
    """An engine whose answers are redacted, on a server or on a database that is there and up to date."""
    if url.startswith(SERVER):
        with _at_server(url) as engine:
            yield engine
        return
    with opened_database(url, create=create) as database:
        yield database.redacted


@contextmanager
def opened_database(url: str, *, create: bool = False) -> Iterator[Engine]:
    """The engine that has the database: it redacts nothing. With `create`, a SQLite file is made and migrated."""
    from onetray.engine import Engine

    with opened_store(url, create=create) as store:
        if create and store.dialect == "sqlite":
            store.migrate()
        engine = Engine(store, config=_settings().engine)
        try:
            yield engine
        finally:
            engine.close()


def database_of(app: Onetray) -> Engine:
    """The engine of an app that has its database itself."""
    from onetray.engine import Engine

    engine = app.engine
    if not isinstance(engine, Engine):
        raise DatabaseUnusable(f"this needs the database itself, and {app.database} is a server: give its --database")
    return engine


@contextmanager
def _at_server(url: str) -> Iterator[RemoteEngine]:
    """The engine of a server. It is asked once, plainly: who types a command is not to wait for a wrong address."""
    from onetray.remote.engine import RemoteEngine

    with RemoteEngine(url, config=_settings().engine, redacted=True) as engine:
        engine.introduce(patience_s=0.0)
        yield engine


def must_answer(url: str) -> None:
    """Ask once, plainly: the pool would try for 15 seconds and not say why it failed."""
    import logging
    from importlib import import_module

    import_module("onetray.store.postgres")  # Names the extra when psycopg is missing.
    import psycopg

    # The pool's own warnings would stand beside the one line that says it all.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.Error as e:
        raise DatabaseUnusable(f"check --database: PostgreSQL does not answer at {without_password(url)}: {e}") from e


def without_password(url: str) -> str:
    """The URL without its password and options."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if not url.startswith("postgres"):
        return url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def who() -> dict[str, str]:
    """Who gives the command: what the log will say."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = "anonymous"
    return {"actor_name": name[:200] or "anonymous"}


def confirm(question: str, yes: bool) -> None:
    """Ask before what cannot be undone. Where nobody can answer, --yes has to be given."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} There is no terminal to answer on: give --yes to go on")
    if not click.confirm(question, err=True):
        raise click.Abort
