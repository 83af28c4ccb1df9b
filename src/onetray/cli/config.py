"""`onetray config`: print each setting, its value and its source. settings.py reads them."""

from __future__ import annotations

from typing import Any

import click

from onetray.cli.options import json_option
from onetray.cli.output import print_json
from onetray.cli.tables import print_table
from onetray.config import without_password


@click.command(short_help="Print each setting and its source.")
@click.option("--database", metavar="URL", help="A database, as for other commands: shows that it takes precedence.")
@click.option("--namespace", metavar="NAME", help="A namespace, likewise.")
@json_option
def config(database: str | None, namespace: str | None, as_json: bool) -> None:
    """Print each setting, its value and its source.

    The first source that has a value wins: arguments, the environment (ONETRAY_…), onetray.toml in the working
    directory (or the file that ONETRAY_CONFIG names), the default.
    """
    from onetray.settings import load

    settings = load({"database": database, "namespace": namespace}).origins
    if as_json:
        print_json({s.name: {"value": _value(s.name, s.value), "source": s.source} for s in settings})
        return
    print_table(("setting", "value", "from"), [(s.name, _text(_value(s.name, s.value)), s.source) for s in settings])


def _value(name: str, value: Any) -> Any:
    return without_password(value) if name == "database" else value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else "" if value is None else f"{value}"
