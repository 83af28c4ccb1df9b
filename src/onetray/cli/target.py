"""Which database and which namespace a command uses, and where it learned that.

The first source that has a value wins: the option, the environment, onetray.toml, the app, the default. A program's
`Onetray(…)` follows the same order. Owns this order and its words in messages; options.py opens the database.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from onetray.cli import SOURCES, BadInput
from onetray.config import hide_password, plain_url

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.settings import Loaded, Settings

SERVER = ("http://", "https://")
SCHEMES = ("sqlite:///", "sqlite://:memory:", "postgresql://", "postgres://", *SERVER)
_APP, _VERBOSE = "onetray.app", "onetray.verbose"


def remember_app(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_APP] = value


def named_app(ctx: click.Context) -> str | None:
    """The value of --app."""
    path: str | None = ctx.meta.get(_APP)
    return path


def remember_verbose(ctx: click.Context, param: click.Parameter | None, value: bool) -> None:
    ctx.meta[_VERBOSE] = value


def database_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of --database, or what stands for it."""
    return value if ctx.resilient_parsing else _checked(_found(ctx, "database", value))


def namespace_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of --namespace, or what stands for it."""
    return value if ctx.resilient_parsing else _found(ctx, "namespace", value)


def database_before_app(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """As `database_url`, but None if only the app can say it: for commands that load the app themselves."""
    url = _before_app(ctx, "database", value)
    return None if url is None else _checked(url)


def namespace_before_app(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return _before_app(ctx, "namespace", value)


def _checked(url: str) -> str:
    url = plain_url(url)
    if not url.startswith(SCHEMES):
        raise click.BadParameter(
            "write sqlite:///relative.db, sqlite:////absolute.db, postgresql://host/name or http://host:port"
        )
    return url


def _before_app(ctx: click.Context, name: str, value: str | None) -> str | None:
    """What the option, the environment or the file says; None if none of them does."""
    from onetray.settings import DEFAULT, variable_of

    sources = ctx.meta.setdefault(SOURCES, {})
    if value is not None:
        is_variable = ctx.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
        sources[name] = variable_of(name) if is_variable else f"--{name}"
        return value
    setting = loaded().origin(name)
    if setting.source == DEFAULT:
        return None
    sources[name] = setting.source.partition(" ")[2]
    return str(setting.value)


def _found(ctx: click.Context, name: str, value: str | None) -> str:
    value = _before_app(ctx, name, value)
    path = app_path(ctx)
    if value is not None:
        return value
    return _default(name) if path is None else _said_by(ctx, _imported(path, name), path, name)


def _said_by(ctx: click.Context, app: Onetray, path: str, name: str) -> str:
    value = str(getattr(app, name))
    if value != _default(name):
        ctx.meta[SOURCES][name] = f"the app {path}"
    return value


def _default(name: str) -> str:
    from onetray.settings import Settings

    return str(getattr(Settings(), name))


def find_both(ctx: click.Context) -> tuple[str, str]:
    """The database and the namespace of a line that is being completed."""
    database, namespace = (_found(ctx, name, ctx.params.get(name)) for name in ("database", "namespace"))
    return plain_url(database), namespace


def loaded() -> Loaded:
    from onetray.domain.errors import InvalidInput
    from onetray.settings import load

    try:
        return load()
    except InvalidInput as e:
        raise click.UsageError(str(e)) from e


def settings() -> Settings:
    return loaded().settings


def app_path(ctx: click.Context | None = None) -> str | None:
    """The path of the app: --app, else the setting app."""
    ctx = ctx or click.get_current_context()
    return named_app(ctx) or settings().app


def _imported(path: str, name: str) -> Onetray:
    """The app, imported only to read its database or its namespace."""
    from contextlib import redirect_stdout

    from onetray.domain.errors import InvalidInput
    from onetray.worker.app_loader import load_app

    try:
        # What the app prints must not stand in the command's output.
        with redirect_stdout(sys.stderr):
            return load_app(path)
    except InvalidInput as e:
        if "traceback" not in e.facts:
            raise
        raise BadInput.of(e, f"; to do without: --{name}") from e


def app_values(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What the app says about these settings, with the source, if there is an app. It may be impossible to import."""
    from onetray.domain.errors import InvalidInput

    path = app_path()
    try:
        values = {name: getattr(_imported(path, name), name) for name in names} if path else {}
    except (BadInput, InvalidInput) as e:
        click.echo(f"onetray: {e}", err=True)
        return {}
    return {name: (value, f"app {path}") for name, value in values.items() if value != _default(name)}


def use_app(path: str, database: str | None, namespace: str | None) -> tuple[Onetray, list[str]]:
    """Load an app and let it use this database and namespace. Returns warnings if its code names others."""
    from onetray.worker.app_loader import load_app

    app, warnings = load_app(path), []
    for name, value in (("database", database), ("namespace", namespace)):
        if value is None:
            _said_by(click.get_current_context(), app, path, name)
            continue
        source = source_of(name)
        if getattr(app, name) != value and source not in (f"--{name}", "--server"):
            other, used = hide_password(getattr(app, name)), hide_password(value)
            warnings.append(f"the code of {path} names the {name} {other}, but {source} says {used}, which is used")
        setattr(app, name, value)
    return app, warnings


def source_of(name: str) -> str:
    """Where a command learned its database or its namespace."""
    ctx = click.get_current_context(silent=True)
    source: str | None = None if ctx is None else ctx.meta.get(SOURCES, {}).get(name)
    return source or "the default"


def absolute(url: str) -> str:
    """A URL for messages: without its password, a relative path of SQLite as an absolute one."""
    from urllib.parse import quote

    if not url.startswith("sqlite:///") or url.startswith(("sqlite:////", "sqlite:///:memory:")):
        return hide_password(url)
    return f"sqlite:///{quote(os.getcwd())}/{url.removeprefix('sqlite:///')}"


def name_database(url: str) -> None:
    """Print which database is used on stderr: with --verbose, or if that is a terminal."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None:
        # Errors name it, too.
        ctx.meta.setdefault(SOURCES, {})["url"] = absolute(url)
        # A process may have been started without standard streams.
        if ctx.meta.get(_VERBOSE) or (sys.stderr is not None and sys.stderr.isatty()):
            click.secho(f"database {absolute(url)}, from {source_of('database')}", err=True, dim=True)


def missing_file(url: str, error: Exception) -> str:
    """The message for a SQLite file that does not exist."""
    return (
        f"{error} (from {source_of('database')}): name the right one with --database, ONETRAY_DATABASE, onetray.toml "
        f"or --app, or create it with `onetray migrate --database {absolute(url)}`"
    )
