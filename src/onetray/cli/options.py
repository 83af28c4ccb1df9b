"""Options that commands share, and how a command opens its engine.

target.py decides which database that is. Imports are late, so that help is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onetray.cli import BadInput, DatabaseUnusable
from onetray.cli.target import (
    SERVER,
    database_before_app,
    database_url,
    missing_file,
    name_database,
    namespace_before_app,
    namespace_name,
    remember_app,
    remember_verbose,
    settings,
)
from onetray.config import hide_password

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.engine import Engine
    from onetray.engine.api import EngineApi
    from onetray.remote.engine import RemoteEngine
    from onetray.store.base import Store

Command = TypeVar("Command", bound=Callable[..., Any])

MAX_LISTED = 10_000

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _database_option(callback: Callback) -> Callable[[Command], Command]:
    return click.option(
        "--database",
        metavar="URL",
        envvar="ONETRAY_DATABASE",
        show_envvar=True,
        callback=callback,
        help="sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/name, or a server: http://host:port.",
    )


def _namespace_option(callback: Callback) -> Callable[[Command], Command]:
    return click.option(
        "--namespace",
        metavar="NAME",
        envvar="ONETRAY_NAMESPACE",
        show_envvar=True,
        callback=callback,
        help="The namespace to use.",
    )


_app_option = click.option(
    "--app",
    metavar="MODULE:APP",
    is_eager=True,
    expose_value=False,
    callback=remember_app,
    help="The app, which may name the database and the namespace. Default: the setting app.",
)
_verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=remember_verbose,
    help="Print on stderr which database is used. Default: if stderr is a terminal.",
)


def database_option(command: Command) -> Command:
    """The options of every command that opens a database: --database, --app, --verbose."""
    return _database_option(database_url)(_app_option(_verbose_option(command)))


namespace_option = _namespace_option(namespace_name)


def app_options(command: Command) -> Command:
    """The same and --namespace for commands that run an app: what only the app can say is None. See `use_app`."""
    both = _database_option(database_before_app)(_namespace_option(namespace_before_app)(command))
    return _app_option(_verbose_option(both))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True, help="The maximum number of items."
)
at_option = click.option(
    "--at", type=click.IntRange(1), metavar="EVENT", help="Show it as it was right after this event, by the event's id."
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
    from onetray.domain.errors import NoDatabase
    from onetray.store import open_store

    if url.startswith(SERVER):
        raise DatabaseUnusable(
            f"this command needs the database itself, but {hide_password(url)} is a server: pass its database URL"
        )
    name_database(url)
    options: dict[str, Any] = {}
    if url.startswith("postgres"):
        quiet_driver()
        config = settings().engine
        options = {"pooler": config.pooler, "patience_s": config.call_timeout_s}
    try:
        store = open_store(url, create=create, migrate=False, **options)
    except NoDatabase as e:
        raise DatabaseUnusable(missing_file(url, e)) from e
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened(url: str) -> Iterator[EngineApi]:
    """Open an engine with redacted answers on a server, or on an existing, migrated database."""
    if url.startswith(SERVER):
        with _at_server(url) as engine:
            yield engine
        return
    with opened_database(url) as database:
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
        raise DatabaseUnusable(
            f"this needs the database itself, but {hide_password(app.database)} is a server: pass its database URL"
        )
    return engine


@contextmanager
def _at_server(url: str) -> Iterator[RemoteEngine]:
    """Open the engine of a server. Tries to connect only once, so that a wrong address fails at once."""
    from onetray.remote.engine import RemoteEngine

    name_database(url)
    with RemoteEngine(url, config=settings().engine, redacted=True) as engine:
        engine.introduce(patience_s=0.0)
        yield engine


def quiet_driver() -> None:
    """Without a handler the warnings of psycopg's pool would be printed beside the error message."""
    import logging

    logging.getLogger("psycopg").addHandler(logging.NullHandler())


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
        raise click.ClickException("nothing was changed")
