"""`onetray verify` and `onetray migrate`: is the database sound, and is its schema the one this code needs.

Owns how the answers are told. The rules are verify's, the migrations the store's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onetray.cli import FOUND, DatabaseUnusable
from onetray.cli.options import database_option, json_option, opened_store, without_password
from onetray.cli.output import console, print_json

if TYPE_CHECKING:
    from onetray.verify import Findings


from onetray.cli.format import age, counted
from onetray.cli.options import common, confirm, opened_database, yes_option
from onetray.cli.output import progress_bar


@click.command()
@database_option
@json_option
@click.option("--rules", is_flag=True, help="Only list what is checked, as a Markdown table. Needs no database.")
@click.pass_context
def verify(ctx: click.Context, database: str, as_json: bool, rules: bool) -> None:
    """Check every rule on every row. Changes nothing.

    Exits with 1 and prints the offending rows when a rule is broken.
    """
    from onetray.verify import verify as check

    if rules:
        print_rules(as_json)
        return
    with opened_store(database, create=False) as store:
        findings = check(store)
    if as_json:
        print_json(findings.as_dict())
    else:
        print_findings(findings)
    if findings.violations:
        ctx.exit(FOUND)


def print_rules(as_json: bool) -> None:
    from onetray.store.sql_template import SQLITE
    from onetray.verify import RULES
    from onetray.verify.checks import passes

    # Both databases are asked the same: only the words differ.
    checks = sorted((c for one in passes(SQLITE) for c in one.checks), key=lambda c: c.rule)
    if as_json:
        print_json({"rules": RULES, "checks": [{"rule": c.rule, "name": c.name, "message": c.message} for c in checks]})
        return
    click.echo("| rule | check | what must hold |\n| --- | --- | --- |")
    for number, words in RULES.items():
        click.echo(f"| **{number}** | | **{words}** |")
        for c in checks:
            if c.rule == number:
                click.echo(f"| {number} | {c.name} | {c.message} |")


def print_findings(findings: Findings) -> None:
    """Each broken rule with its rows, then the verdict in one line."""
    out = console()
    for v in findings.violations:
        more = f", the first {len(v.rows)} are shown" if len(v.rows) < v.total else ""
        out.print(f"rule {v.rule}, {v.name}: {v.message}. Rows that break it: {v.total}{more}", style="bold red")
        for row in v.rows:
            out.print("    " + " ".join(f"{name}={value}" for name, value in row.items()))
    verdict = f"broken: {len(findings.violations)} of" if findings.violations else "clean:"
    counts = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in findings.checked.items())
    colour = "red" if findings.violations else "green"
    out.print(f"{verdict} {len(findings.rules)} checks ({counts})", style=f"bold {colour}")


@click.command()
@database_option
@json_option
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit with 1 when a migration is missing.")
@click.pass_context
def migrate(ctx: click.Context, database: str, as_json: bool, only_check: bool) -> None:
    """Bring the database's schema up to date. Does nothing when it is.

    A SQLite file that does not exist is created.
    """
    from onetray.store.schema import migrations

    with opened_store(database, create=not only_check) as store:
        have, known = store.version(), migrations()
        if have > known[-1]:
            raise DatabaseUnusable(f"the schema is at {have}, this onetray knows {known[-1]}: install a newer one")
        missing = [number for number in known if number > have]
        applied = [] if only_check else store.migrate()
        version = store.version()
    missing = missing if only_check else []
    if as_json:
        print_json({"database": without_password(database), "version": version, "applied": applied, "missing": missing})
    else:
        click.echo(_applied(without_password(database), version, applied, missing))
    if missing:
        ctx.exit(FOUND)


def _applied(where: str, version: int, applied: list[int], missing: list[int]) -> str:
    if missing:
        return f"{where}: at version {version}, missing {_numbers(missing)}: run `onetray migrate`"
    if applied:
        return f"{where}: applied {_numbers(applied)}, now at version {version}"
    return f"{where}: up to date at version {version}"


def _numbers(numbers: list[int]) -> str:
    return ", ".join(f"{number:04d}" for number in numbers)


STEP = 500


@click.command(short_help="Remove old jobs for good.")
@click.option("--older-than", type=age, metavar="AGE", required=True, help="Since their end: 90s, 15m, 2h, 30d.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@yes_option
@common
def prune(older_than: float, dry_run: bool, yes: bool, database: str, namespace: str, as_json: bool) -> None:
    """Remove whole jobs that ended long enough ago, with their events, logs and dead letters. It asks first.

    What has not ended stays, and so does a job whose idempotency key still lives.
    """
    with opened_database(database) as engine:
        found = engine.prunable(older_than, namespace=namespace)
        total, removed = sum(found), 0
        words = f"{counted(found.tasks, 'task')} and {counted(found.flows, 'flow')}"
        if total and not dry_run:
            confirm(f"Remove {words} for good?", yes)
            with progress_bar("removing", total) as step:
                while keys := engine.prune(older_than, namespace=namespace, limit=STEP):
                    removed += len(keys)
                    step(len(keys))
    if as_json:
        print_json({"tasks": found.tasks, "flows": found.flows, "removed": removed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would remove {words}")
    else:
        click.echo(f"removed {counted(removed, 'job')}")
