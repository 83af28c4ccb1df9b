"""`onetray tasks`: list the tasks of a flow or a stage, and show one."""

from __future__ import annotations

import click

from onetray.cli.completion import complete_flow_jobs
from onetray.cli.options import at_option, common, limit_option, opened
from onetray.cli.output import print_json_list
from onetray.cli.show import print_members, print_past, print_task
from onetray.cli.stages import stage_id


@click.group(short_help="List the tasks of a flow or a stage.")
def tasks() -> None:
    """List the tasks of a flow or a stage, and show one."""


@tasks.command("list", short_help="List the tasks of a flow or a stage.")
@click.argument("parent", metavar="FLOW|STAGE", shell_complete=complete_flow_jobs)
@click.option("--state", "states", multiple=True, help="Only tasks in this state. May be repeated.")
@click.option("--after", metavar="ID", help="Start after this task: the last one of the previous page.")
@limit_option
@common
def list_(
    parent: str,
    states: tuple[str, ...],
    after: str | None,
    limit: int,
    database: str,
    namespace: str,
    as_json: bool,
) -> None:
    """List the tasks of a flow, in the order of its stages, or those of one stage (an id, or FLOW/name)."""
    with opened(database) as engine:
        stage = None
        if "/" in parent:
            stage = stage_id(engine, parent, namespace)
        else:
            located = engine.locate(parent, among=("flow", "stage"), namespace=namespace)
            stage = located.id if located.entity == "stage" else None
        flow = located.id if stage is None else engine.stage(stage, namespace=namespace).flow_id
        start = None if after is None else engine.locate(after, among=("task",), namespace=namespace).id
        members = engine.members(flow, stage=stage, states=states, after=start, limit=limit, namespace=namespace)
        now = engine.now()
    next_ = members[-1].id if len(members) == limit else None
    if as_json:
        print_json_list("tasks", members, next_=next_, after=next_)
        return
    print_members(members, now)
    if next_:
        click.echo(f"There may be more: --after {next_}", err=True)


@tasks.command(short_help="Show one task.")
@click.argument("id")
@at_option
@common
def show(id: str, at: int | None, database: str, namespace: str, as_json: bool) -> None:
    """Show one task with all its fields. With --at, as it was right after one of its events."""
    with opened(database) as engine:
        located = engine.locate(id, among=("task",), namespace=namespace)
        if at is not None:
            print_past(engine.at(located.id, at, namespace=namespace), engine.now(), as_json)
            return
        print_task(engine, located.id, namespace, as_json)
