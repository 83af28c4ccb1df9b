"""`onetray config`: print the settings as onetray.toml or as environment variables. settings.py reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from onetray.cli.options import json_option
from onetray.cli.output import print_json
from onetray.cli.tables import one_line
from onetray.cli.target import app_values, named_app, remember_app
from onetray.config import hide_password

if TYPE_CHECKING:
    from onetray.settings import Setting


@click.command(short_help="Print each setting and its source.")
@click.option("--database", metavar="URL", help="Print the settings as they are with this --database.")
@click.option("--namespace", metavar="NAME", help="Print them as they are with this --namespace.")
@click.option(
    "--app",
    metavar="MODULE:APP",
    expose_value=False,
    callback=remember_app,
    help="Print them as they are with this --app.",
)
@click.option("--env", "as_variables", is_flag=True, help="Print environment variables instead, for a shell.")
@click.option("--show-password", is_flag=True, help="Print the database's URL with its password.")
@json_option
def config(database: str | None, namespace: str | None, as_variables: bool, show_password: bool, as_json: bool) -> None:
    """Print each setting, its value and its source, as an onetray.toml that has these values.

    The first source that has a value wins: arguments, the environment (ONETRAY_…), onetray.toml in the working
    directory (or the file that ONETRAY_CONFIG names), the app (database and namespace only), the default. The password
    of the database is left out.
    """
    from onetray.settings import load

    app = named_app(click.get_current_context())
    settings = list(_with_app(load({"database": database, "namespace": namespace, "app": app}).origins))
    if not show_password:
        settings = [_without_password(s) for s in settings]
    if as_json:
        print_json({s.name: {"value": s.value, "source": s.source} for s in settings})
        return
    for line in _variables(settings) if as_variables else _toml(settings):
        click.echo(line)


def _with_app(settings: Sequence[Setting]) -> Iterator[Setting]:
    """The settings, with what the app says where no other source says anything."""
    from onetray.settings import DEFAULT

    by_app = app_values([s.name for s in settings if s.source == DEFAULT and s.name in ("database", "namespace")])
    for s in settings:
        yield replace(s, value=by_app[s.name][0], source=by_app[s.name][1]) if s.name in by_app else s


def _without_password(setting: Setting) -> Setting:
    if setting.name != "database":
        return setting
    url = hide_password(setting.value, mark="")
    hidden = "" if url == setting.value else "; its password is left out: --show-password"
    return replace(setting, value=url, source=setting.source + hidden)


def _toml(settings: Sequence[Setting]) -> Iterator[str]:
    section = ""
    for s in settings:
        prefix, _, key = s.name.rpartition(".")
        if prefix != section:
            section = prefix
            yield f"\n[{section}]"
        source = one_line(s.source)
        yield f"# {key} is not set: {source}" if s.value is None else f"{key} = {_toml_value(s.value)}  # {source}"


def _toml_value(value: Any) -> str:
    import json

    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    # A string of JSON is one of TOML, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def _variables(settings: Sequence[Setting]) -> Iterator[str]:
    from shlex import quote

    from onetray.settings import variable_of

    for s in settings:
        variable = variable_of(s.name)
        if s.value in (None, ()):
            yield f"# {variable} is not set: {one_line(s.source)}"
        elif isinstance(s.value, tuple) and any("," in name for name in s.value):
            yield f"# {variable} cannot have a name with a comma: set {s.name} in onetray.toml"
        else:
            yield f"# {one_line(s.source)}\n{variable}={quote(_variable_value(s.value))}"


def _variable_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
