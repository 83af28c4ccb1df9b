"""`onetray verify`, `migrate` and `prune`: check a database, update its schema, delete old jobs.

Owns the output. The rules are in verify/, the migrations in store/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onetray.cli import CHECK_FAILED, DatabaseUnusable
from onetray.cli.format import age, counted
from onetray.cli.options import (
    common,
    confirm,
    database_option,
    json_option,
    opened_database,
    opened_store,
    yes_option,
)
from onetray.cli.output import console, print_json, progress_bar
from onetray.cli.target import absolute

if TYPE_CHECKING:
    from onetray.verify import Findings


@click.command()
@database_option
@json_option
@click.option("--rules", is_flag=True, help="Only list the checks, as a Markdown table. Needs no database.")
@click.pass_context
def verify(ctx: click.Context, database: str, as_json: bool, rules: bool) -> None:
    """Check every rule on every row. Changes nothing.

    Exits with 1 and prints the rows that break a rule, if there are any.
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
        ctx.exit(CHECK_FAILED)


def print_rules(as_json: bool) -> None:
    from onetray.store.sql_template import SQLITE
    from onetray.verify import FILE_CHECK, FILE_CHECK_MEANS, FILE_RULE_NUMBER, RULES
    from onetray.verify.checks import passes
    from onetray.verify.folded import FOLDED

    # Those on rows are the same on both databases; only their SQL differs.
    checks = sorted([FOLDED, *(c for group in passes(SQLITE) for c in group.checks)], key=lambda c: c.rule)
    rows = [(c.rule, c.name, c.message) for c in checks] + [(FILE_RULE_NUMBER, FILE_CHECK, FILE_CHECK_MEANS)]
    if as_json:
        print_json({"rules": RULES, "checks": [{"rule": r, "name": n, "message": m} for r, n, m in rows]})
        return
    click.echo("| rule | check | what must hold |\n| --- | --- | --- |")
    for number, text in RULES.items():
        click.echo(f"| **{number}** | | **{text}** |")
        for rule, name, message in rows:
            if rule == number:
                click.echo(f"| {number} | {name} | {message} |")


def print_findings(findings: Findings) -> None:
    """Print each broken rule with its rows, then a summary line."""
    out = console()
    for v in findings.violations:
        cut = f", the first {len(v.rows)} are listed" if len(v.rows) < v.total else ""
        out.print(f"rule {v.rule}, {v.name}: {v.message}. Rows that break it: {v.total}{cut}", style="bold red")
        for row in v.rows:
            out.print("    " + " ".join(f"{name}={value}" for name, value in row.items()))
    verdict = f"broken: {len(findings.violations)} of" if findings.violations else "clean:"
    counts = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in findings.checked.items())
    for note in findings.notes:
        out.print(f"not checked: {note}", style="bold yellow")
    colour = "red" if findings.violations else "green"
    out.print(f"{verdict} {len(findings.rules)} checks ({counts})", style=f"bold {colour}")


@click.command()
@database_option
@json_option
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit with 1 if a migration is missing.")
@click.pass_context
def migrate(ctx: click.Context, database: str, as_json: bool, only_check: bool) -> None:
    """Bring the database's schema up to date. Does nothing if it is.

    Creates a SQLite file that does not exist.
    """
    from onetray.store.schema import migrations

    with opened_store(database, create=not only_check) as store:
        version, known = store.version(), migrations()
        if version > known[-1]:
            raise DatabaseUnusable(
                f"the schema is at version {version}, but this onetray supports {known[-1]}: install a newer onetray"
            )
        missing = [number for number in known if number > version]
        applied = [] if only_check else store.migrate()
        version = store.version()
    missing = missing if only_check else []
    if as_json:
        print_json({"database": absolute(database), "version": version, "applied": applied, "missing": missing})
    else:
        click.echo(_migration_summary(absolute(database), version, applied, missing))
    if missing:
        ctx.exit(CHECK_FAILED)


def _migration_summary(url: str, version: int, applied: list[int], missing: list[int]) -> str:
    if missing:
        return f"{url}: at version {version}, missing {_numbers(missing)}: run `onetray migrate --database {url}`"
    if applied:
        return f"{url}: applied {_numbers(applied)}, now at version {version}"
    return f"{url}: up to date at version {version}"


def _numbers(numbers: list[int]) -> str:
    return ", ".join(f"{number:04d}" for number in numbers)


STEP = 500


@click.command(short_help="Delete old jobs permanently.")
@click.option("--older-than", type=age, metavar="AGE", required=True, help="Time since they ended: 90s, 15m, 2h, 30d.")
@click.option("--dry-run", is_flag=True, help="Only print how many there are.")
@yes_option
@common
def prune(older_than: float, dry_run: bool, yes: bool, database: str, namespace: str, as_json: bool) -> None:
    """Delete jobs that ended longer ago than AGE, with their events, logs and dead letters. Asks first.

    Keeps jobs that have not ended, and jobs whose idempotency key has not expired.
    """
    with opened_database(database) as engine:
        prunable = engine.prunable(older_than, namespace=namespace)
        total, removed = sum(prunable), 0
        summary = f"{counted(prunable.tasks, 'task')} and {counted(prunable.flows, 'flow')}"
        if total and not dry_run:
            confirm(f"Delete {summary} permanently?", yes)
            with progress_bar("deleting", total) as step:
                while keys := engine.prune(older_than, namespace=namespace, limit=STEP):
                    removed += len(keys)
                    step(len(keys))
    if as_json:
        print_json({"tasks": prunable.tasks, "flows": prunable.flows, "removed": removed, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would delete {summary}")
    else:
        click.echo(f"deleted {counted(removed, 'job')}")
