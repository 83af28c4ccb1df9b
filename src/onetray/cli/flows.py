"""`onetray flows`: list the flows that workers have declared; show, submit and forget one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli import CHECK_FAILED
from onetray.cli.completion import complete_flows
from onetray.cli.format import age, moment
from onetray.cli.options import acting_user, common, json_value, label, limit_option, opened
from onetray.cli.output import print_json, print_json_list
from onetray.cli.tables import print_facts, print_table
from onetray.domain.clock import duration

if TYPE_CHECKING:
    from onetray.domain.declared_flow import DeclaredFlow, DeclaredStage


@click.group(short_help="List declared flows; show, submit and forget one.")
def flows() -> None:
    """List the flows that workers have declared; show, submit and forget one by its name.

    To submit a flow by name, you do not need the app's code. To list flows that were submitted: `onetray jobs list`.
    """


@flows.command("list", short_help="List the declared flows.")
@limit_option
@common
def list_(limit: int, database: str, namespace: str, as_json: bool) -> None:
    """List the declared flows by name.

    If workers run different code, a flow has a second version: the last two columns show it, and when a worker last
    declared it.
    """
    with opened(database) as engine:
        listed, now = engine.declared_flows(namespace=namespace, limit=limit), engine.now()
    if as_json:
        print_json_list("flows", listed, limit)
        return
    print_table(
        ("flow", "stages", "version", "declared", "by", "last seen", "other version", "last seen"),
        [
            (
                f.name, f.stages, f.version, moment(f.declared_at, now), f.declared_by, moment(f.seen_at, now),
                f.other_version or "", moment(f.other_seen_at, now),
            )
            for f in listed
        ],
        empty="no flow is declared: a worker declares those of its app, `onetray worker --app MODULE:APP`",
    )  # fmt: skip


@flows.command(short_help="Show a declared flow.")
@click.argument("name", shell_complete=complete_flows)
@common
def show(name: str, database: str, namespace: str, as_json: bool) -> None:
    """Show the flow NAME: its stages, its rules, and the JSON Schema of its config."""
    with opened(database) as engine:
        flow, now = engine.declared_flow(name, namespace=namespace), engine.now()
    if as_json:
        print_json(flow)
        return
    print_facts(_facts(flow, now))
    print_table(
        ("stage", "kind", "queue", "tasks", "condition", "approval", "compensation", "on failure", "attempts"),
        [
            (
                s.name, s.kind, s.queue, _tasks(s), s.condition or "", s.approval.owner if s.approval else "",
                s.compensation or "", s.on_failure, s.policy.max_attempts if s.policy else "",
            )
            for s in flow.stages
        ],
    )  # fmt: skip


def _facts(flow: DeclaredFlow, now: int) -> list[tuple[str, Any]]:
    import json

    other = None if flow.other_seen_at is None else f"{flow.other_version}, seen {moment(flow.other_seen_at, now)}"
    return [
        ("flow", flow.name), ("namespace", flow.namespace), ("version", flow.version),
        ("declared", f"{moment(flow.declared_at, now)} by {flow.declared_by}"),
        ("last seen", moment(flow.seen_at, now)), ("other version", other),
        ("roll-up", flow.roll_up), ("singleton", "yes" if flow.singleton else None),
        ("deadline", None if flow.deadline_s is None else duration(int(flow.deadline_s * 1_000_000))),
        ("redacts", ", ".join(flow.redact) or None),
        ("config", None if flow.config_schema is None else json.dumps(flow.config_schema, ensure_ascii=False)),
    ]  # fmt: skip


def _tasks(stage: DeclaredStage) -> str:
    return {
        "one": "1", "list": f"{stage.items:,}" if stage.items is not None else "", "config": "by the config",
        "stage": f"by {stage.source}",
    }.get(stage.fan_out, stage.fan_out)  # fmt: skip


@flows.command(short_help="Submit a declared flow.")
@click.argument("name", shell_complete=complete_flows)
@click.option("--config", type=json_value, metavar="JSON", help="The flow's config. Missing fields get their defaults.")
@click.option("--priority", type=int, help="Higher runs sooner.")
@click.option("--deadline", metavar="AGE", type=age, help="Replace the declared deadline: 90s, 15m, 2h, 3d.")
@click.option("--idempotency-key", metavar="KEY", help="A repeated submit with this key returns the same job.")
@click.option("--unique-key", metavar="KEY", help="At most one job with this key is open at a time.")
@click.option("--alias", metavar="TEXT", help="An id of your own, unique in the namespace.")
@click.option("--label", "labels", metavar="NAME=VALUE", type=label, multiple=True, help="A label. May be repeated.")
@click.option("--metadata", type=json_value, metavar="JSON", help="JSON that is stored with the job and shown.")
@click.option("--correlation-id", metavar="ID", help="An id that related jobs share.")
@click.option("--wait", is_flag=True, help="Follow its log and its progress until it has ended.")
@click.option("--timeout", metavar="AGE", type=age, help="With --wait: the longest time to wait.")
@common
def submit(
    name: str, deadline: float | None, labels: tuple[tuple[str, str], ...], wait: bool, timeout: float | None,
    database: str, namespace: str, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit the flow NAME, as a worker has declared it.

    With --wait it exits with 0 if the job succeeded and with 1 otherwise.
    """
    fields = {field: value for field, value in options.items() if value is not None} | acting_user()
    if deadline is not None:
        fields["deadline_s"] = deadline
    if labels:
        fields["labels"] = dict(labels)
    with opened(database) as engine:
        placed = engine.submit_declared(name, namespace=namespace, **fields)
        if wait:
            from onetray.cli.wait import wait_for_end

            if not wait_for_end(engine, placed.id, "flow", namespace, timeout, as_json):
                click.get_current_context().exit(CHECK_FAILED)
        elif as_json:
            print_json({"id": placed.id, "entity": "flow", "repeated": placed.repeated})
        else:
            click.echo(f"{placed.id}{' (already submitted)' if placed.repeated else ''}")


@flows.command(short_help="Remove the declaration of a flow.")
@click.argument("name", shell_complete=complete_flows)
@common
def forget(name: str, database: str, namespace: str, as_json: bool) -> None:
    """Remove the declaration of the flow NAME. Its jobs stay; a worker that still has the flow declares it again."""
    with opened(database) as engine:
        engine.forget_flow(name, namespace=namespace)
    print_json({"flow": name, "forgotten": True}) if as_json else click.echo(f"flow {name} is forgotten")
