"""`onetray jobs cancel`, `pause`, `resume` and `retry`: what a person may do about a job.

Owns which verb of the engine a word stands for: one for tasks, one for flows. Whether it is allowed, the engine says.
"""

from __future__ import annotations

from typing import Any

import click

from onetray.cli import Refused
from onetray.cli.format import counted
from onetray.cli.options import common, confirm, json_value, opened, who, yes_option
from onetray.cli.output import jsonable, print_json

JOB = ("task", "flow")

reason_option = click.option("--reason", help="Why. It stands in the log.")


@click.command(short_help="Cancel a job.")
@click.argument("id")
@click.option("--hard", is_flag=True, help="Do not ask running workers to stop: revoke their leases at once.")
@reason_option
@yes_option
@common
def cancel(id: str, hard: bool, reason: str | None, yes: bool, database: str, namespace: str, as_json: bool) -> None:
    """Cancel a job. A running task is asked to stop and has its grace, unless --hard is given.

    Of a flow all that is open is cancelled: it asks first.
    """
    with opened(database) as engine:
        found = engine.locate(id, among=JOB, namespace=namespace)
        said: dict[str, Any] = {**who(), "namespace": namespace, "cause": reason, "hard": hard}
        if found.entity == "task":
            print_result(engine.cancel(found.id, **said), as_json)
            return
        counts = engine.progress(found.id, namespace=namespace).counts
        if counts.total > counts.done:
            confirm(f"Cancel the flow {found.id} with {counted(counts.total - counts.done, 'open task')}?", yes)
        print_result(engine.cancel_flow(found.id, **said), as_json)


@click.command(short_help="Pause a flow.")
@click.argument("id")
@reason_option
@common
def pause(id: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Pause a flow: nothing more of it is claimed. What runs goes on, and its reports count."""
    with opened(database) as engine:
        found = engine.locate(id, among=JOB, namespace=namespace)
        if found.entity == "task":
            queue = engine.task(found.id, namespace=namespace).queue
            raise Refused(
                f"a single task is paused by its own handler only; to hold it back pause its queue "
                f"(`onetray queues pause {queue}`), to drop it cancel it (`onetray jobs cancel {found.id}`)"
            )
        print_result(engine.pause_flow(found.id, namespace=namespace, cause=reason, **who()), as_json)


@click.command(short_help="Resume a paused flow, or a task that waits.")
@click.argument("id")
@click.option("--input", "input_", type=json_value, metavar="JSON", help="What a task that waits for input is given.")
@reason_option
@common
def resume(id: str, input_: Any, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Resume a flow that is paused, or a task that is blocked or waits for input."""
    with opened(database) as engine:
        found = engine.locate(id, among=JOB, namespace=namespace)
        said: dict[str, Any] = {**who(), "namespace": namespace, "cause": reason}
        if found.entity == "task":
            print_result(engine.resume(found.id, input=input_, **said), as_json)
            return
        if input_ is not None:
            raise click.UsageError("--input is for a task: a flow takes none")
        print_result(engine.resume_flow(found.id, **said), as_json)


@click.command(short_help="Run a job again that has ended.")
@click.argument("id")
@click.option("--from-stage", metavar="NAME", help="Of a flow: from this stage. Otherwise from the one that failed.")
@reason_option
@common
def retry(id: str, from_stage: str | None, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Run a job again that has ended: a new job, which names the old one."""
    with opened(database) as engine:
        found = engine.locate(id, among=JOB, namespace=namespace)
        said: dict[str, Any] = {**who(), "namespace": namespace, "cause": reason}
        if found.entity == "flow":
            print_result(engine.retry_flow(found.id, from_stage=from_stage, **said), as_json, new=True)
            return
        if from_stage is not None:
            raise click.UsageError("--from-stage is for a flow: a task has no stages")
        print_result(engine.redrive(found.id, **said), as_json, new=True)


def print_result(answer: Any, as_json: bool, *, new: bool = False) -> None:
    """Where it stands now, and what may be done next."""
    if as_json:
        print_json({**jsonable(answer), "actions": list(answer.actions)})
        return
    entity = getattr(answer, "entity", "task")
    made = "again: " if new and answer.repeated else "new " if new else ""
    allowed = f"; allowed now: {', '.join(answer.actions)}" if answer.actions else ""
    click.echo(f"{made}{entity} {answer.id} is {answer.state}{allowed}")
