"""`onetray bulk`: list, watch, stop and resume operations on many jobs that janitors carry out in the background.

`onetray jobs cancel --all --background` and `onetray dead redrive --all --canary` start them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from onetray.cli.format import moment
from onetray.cli.jobs.act import reason_option
from onetray.cli.options import acting_user, common, limit_option, opened
from onetray.cli.output import print_json, print_json_list
from onetray.cli.tables import print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.bulk import BulkOperation


@click.group(short_help="List, watch, stop and resume operations on many jobs.")
def bulk() -> None:
    """List, watch, stop and resume operations on many jobs, which run in the background.

    A process with a janitor carries them out: a worker, `onetray serve` or `onetray up`.
    """


@bulk.command("list", short_help="List operations, newest first.")
@click.option("--unfinished", is_flag=True, help="Only those that run or are paused.")
@limit_option
@common
def list_(unfinished: bool, limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List operations on many jobs, newest first."""
    with opened(database) as engine:
        found, now = engine.bulks(unfinished=unfinished, limit=limit, namespace=namespace), engine.now()
    if as_json:
        print_json_list("bulk_operations", found, limit)
        return
    print_table(
        ("id", "action", "filters", "state", "done", "refused", "started"),
        [
            (
                operation.id, operation.action, filters_text(operation.filters), operation.state,
                f"{operation.done:,}", f"{operation.refused:,}",
                f"by {operation.created_by}, {moment(operation.created_at, now)}",
            )
            for operation in found
        ],
    )  # fmt: skip


@bulk.command(short_help="Show how far an operation is.")
@click.argument("id")
@common
def show(id: str, database: str, namespace: str, as_json: bool) -> None:
    """Show how far an operation is, and how the tasks of its canary do."""
    with opened(database) as engine:
        print_operation(engine.bulk(id, namespace=namespace), engine.now(), as_json)


@bulk.command(short_help="Stop an operation.")
@click.argument("id")
@reason_option
@common
def stop(id: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Stop an operation. What it has done so far stays done."""
    with opened(database) as engine:
        by = acting_user()["actor_name"]
        print_operation(engine.stop_bulk(id, reason=reason, by=by, namespace=namespace), engine.now(), as_json)


@bulk.command(short_help="Resume an operation after its canary.")
@click.argument("id")
@reason_option
@common
def resume(id: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Resume an operation that is paused after its canary."""
    with opened(database) as engine:
        by = acting_user()["actor_name"]
        print_operation(engine.resume_bulk(id, reason=reason, by=by, namespace=namespace), engine.now(), as_json)


def print_started(operation: BulkOperation, as_json: bool) -> None:
    """Print an operation that has just been started."""
    if as_json:
        print_json(operation)
        return
    click.echo(f"bulk operation {operation.id} is started: watch it with `onetray bulk show {operation.id}`")


def print_operation(operation: BulkOperation, now: int, as_json: bool) -> None:
    if as_json:
        print_json(operation)
        return
    canary = ", ".join(f"{number:,} {state}" for state, number in sorted(operation.canary_states.items()))
    print_facts([
        ("bulk operation", operation.id), ("action", operation.action), ("filters", filters_text(operation.filters)),
        ("state", operation.state), ("started", f"by {operation.created_by}, {moment(operation.created_at, now)}"),
        ("reason", operation.reason), ("limit", operation.limit), ("ended", moment(operation.finished_at, now)),
        ("done", f"{operation.done:,}"), ("repeated", f"{operation.repeated:,}"),
        ("refused", f"{operation.refused:,}"), ("skipped", f"{operation.skipped:,}"), ("canary", canary or None),
    ])  # fmt: skip
    for refusal in operation.refusals:
        click.echo(f"refused {refusal.id}: {refusal.error}", err=True)
    if operation.state == "paused":
        click.echo(f"Continue with `onetray bulk resume {operation.id}`, or end it with `onetray bulk stop`.")


def filters_text(filters: dict[str, Any]) -> str:
    """The filters in one line: kind=mail states=[…]."""
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in filters.items()
    )
