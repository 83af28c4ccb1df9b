"""`onetray doctor`: look the set-up over, and say what to do about what is wrong.

Owns the order: what the rest needs is checked first. The verdicts are checks.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from onetray.cli import FOUND, DatabaseUnusable, checks
from onetray.cli.checks import FAIL, OK, Check
from onetray.cli.options import common, opened_store, shown
from onetray.cli.output import console, print_json
from onetray.cli.tables import STATE_COLOURS, one_line

if TYPE_CHECKING:
    from onetray.store.base import Store


@click.command(short_help="Look the set-up over, and say what to do.")
@common
@click.pass_context
def doctor(ctx: click.Context, database: str, namespace: str, as_json: bool) -> None:
    """Look the set-up over: Python, the database, its schema, clocks, queues, and the rules on small databases.

    Each line is ok, warn or fail, with the next step. Exits with 1 when one is fail. Changes nothing.
    """
    found = list(_all(database, namespace))
    failed = any(c.verdict == FAIL for c in found)
    if as_json:
        print_json({"database": shown(database), "ok": not failed, "checks": found})
    else:
        for c in found:
            _print(c)
    if failed:
        ctx.exit(FOUND)


def _print(c: Check) -> None:
    """One line, never shortened: what to do stands at its end."""
    from rich.text import Text

    said = one_line(f"{c.said}: {c.next_step}" if c.next_step else c.said)
    console().print(Text.assemble((f"{c.verdict:<6}", STATE_COLOURS[c.verdict]), f"{c.name:<10}", said), soft_wrap=True)


def _all(url: str, namespace: str) -> Iterator[Check]:
    from onetray.errors import OnetrayError

    yield from checks.check_python()
    if url.startswith("sqlite"):
        yield from checks.check_sqlite(None if ":memory:" in url else url)
    try:
        with opened_store(url, create=False) as store:
            yield Check("database", OK, f"{shown(url)} answers")
            yield from _inside(url, store, namespace)
    except DatabaseUnusable as e:
        yield Check("database", FAIL, e.message)
    except OnetrayError as e:
        yield Check("database", FAIL, str(e))


def _inside(url: str, store: Store, namespace: str) -> Iterator[Check]:
    from onetray.engine import Engine
    from onetray.settings import load

    config = load().settings.engine
    if url.startswith("postgres"):
        yield from checks.check_server(url, config.pooler)
    yield from checks.check_room(store)
    schema = list(checks.check_schema(store))
    yield from schema
    if any(c.verdict == FAIL for c in schema):
        return
    yield from checks.check_clock(store)
    engine = Engine(store, config=config)
    try:
        yield from checks.check_janitor(engine, namespace)
        yield from checks.check_queues(engine, namespace)
        yield from checks.check_workers(engine, namespace)
        yield from checks.check_rules(store)
    finally:
        engine.close()
