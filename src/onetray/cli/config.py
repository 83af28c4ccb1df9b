"""`onetray config`: each setting, its value, and where it came from.

Owns how it is printed. The settings are settings.py's.
"""

from __future__ import annotations

from typing import Any

import click

from onetray.cli.options import json_option, without_password
from onetray.cli.output import print_json
from onetray.cli.tables import print_table


@click.command(short_help="Print each setting and where it came from.")
@click.option("--database", metavar="URL", help="As other commands take it, to see that it comes first.")
@click.option("--namespace", metavar="NAME", help="The same.")
@json_option
def config(database: str | None, namespace: str | None, as_json: bool) -> None:
    """Print each setting, its value, and where it came from.

    The first source that has it counts: arguments, the environment (ONETRAY_…), the file onetray.toml of the working
    directory (or the one that ONETRAY_CONFIG names), the default.
    """
    from onetray.settings import load

    found = load({"database": database, "namespace": namespace}).origins
    if as_json:
        print_json({s.name: {"value": _value(s.name, s.value), "source": s.source} for s in found})
        return
    print_table(("setting", "value", "from"), [(s.name, _text(_value(s.name, s.value)), s.source) for s in found])


def _value(name: str, value: Any) -> Any:
    """The value without a password."""
    return without_password(value) if name == "database" else value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else "" if value is None else f"{value}"
