"""`onetray jobs cancel`, `pause`, `resume`, `retry`, `priority`, `metadata` and `delete`.

Each calls one verb of the engine for a task and another for a flow; the engine decides whether it is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from onetray.cli import Refused
from onetray.cli.completion import complete_jobs
from onetray.cli.format import counted
from onetray.cli.jobs.bulk import Bulk, bulk_options, check_selection, run_bulk
from onetray.cli.options import acting_user, common, confirm, json_value, opened, yes_option
from onetray.cli.output import jsonable, print_json

if TYPE_CHECKING:
    from onetray.domain.task import Task

JOB = ("task", "flow")

reason_option = click.option("--reason", help="Why; recorded in the event log.")


@click.command(short_help="Cancel a job, or all that match.")
@click.argument("id", required=False, shell_complete=complete_jobs)
@click.option("--hard", is_flag=True, help="Revoke leases at once instead of asking handlers to stop.")
@reason_option
@bulk_options
@common
def cancel(
    id: str | None, all_: bool, hard: bool, reason: str | None, database: str, namespace: str, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Cancel a job. Without --hard, a running task is asked to stop and has cancel_grace_s to do so.

    Cancelling a flow cancels all its open stages and tasks; it asks for confirmation first.

    With --all, it cancels every open job that matches the filters: it lists the first ones, and asks. If interrupted,
    run it again for the rest.
    """
    from onetray.domain.bulk import BulkOptions

    check_selection(id, all_, options)
    fields: dict[str, Any] = {**acting_user(), "namespace": namespace, "cause": reason}
    with opened(database) as engine:
        if id is None:
            bulk = Bulk("cancel", "cancel", "cancelling", BulkOptions(hard=hard), fields)
            run_bulk(engine, bulk, options, namespace, as_json)
            return
        located = engine.locate(id, among=JOB, namespace=namespace)
        if located.entity == "task":
            print_result(engine.cancel(located.id, hard=hard, **fields), as_json)
            return
        counts = engine.progress(located.id, namespace=namespace).counts
        if counts.total > counts.done:
            question = f"Cancel the flow {located.id} with {counted(counts.total - counts.done, 'open task')}?"
            confirm(question, options["yes"])
        print_result(engine.cancel_flow(located.id, hard=hard, **fields), as_json)


@click.command(short_help="Pause a flow.")
@click.argument("id", shell_complete=complete_jobs)
@reason_option
@common
def pause(id: str, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Pause a flow: no more of its tasks are claimed. Running tasks continue, and their results count."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        if located.entity == "task":
            queue = engine.task(located.id, namespace=namespace).queue
            raise Refused(
                f"only its own handler can pause a single task; pause its queue instead "
                f"(`onetray queues pause {queue}`), or cancel the task (`onetray jobs cancel {located.id}`)"
            )
        print_result(engine.pause_flow(located.id, namespace=namespace, cause=reason, **acting_user()), as_json)


@click.command(short_help="Resume a paused flow or a waiting task.")
@click.argument("id", shell_complete=complete_jobs)
@click.option("--input", "input_", type=json_value, metavar="JSON", help="The input for a task that waits for one.")
@reason_option
@common
def resume(id: str, input_: Any, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Resume a paused flow, or a task that is blocked or waits for input."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        fields: dict[str, Any] = {**acting_user(), "namespace": namespace, "cause": reason}
        if located.entity == "task":
            if input_ is None:
                _require_no_question(engine.task(located.id, namespace=namespace))
            print_result(engine.resume(located.id, input=input_, **fields), as_json)
            return
        if input_ is not None:
            raise click.UsageError("--input is only for tasks: a flow takes none")
        print_result(engine.resume_flow(located.id, **fields), as_json)


def _require_no_question(task: Task) -> None:
    """Raise UsageError if the task waits for an answer: without one, its handler would ask again."""
    if task.state == "waiting_input":
        raise click.UsageError(f"the task waits for input of {task.held_by} ({task.held_why}): pass --input JSON")


@click.command(short_help="Run an ended job again, or all that match.")
@click.argument("id", required=False, shell_complete=complete_jobs)
@click.option("--from-stage", metavar="NAME", help="The stage of a flow to start from. Default: the one that failed.")
@reason_option
@bulk_options
@common
def retry(
    id: str | None, all_: bool, from_stage: str | None, reason: str | None, database: str, namespace: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run an ended job again, as a new job that is linked to the old one.

    With --all, it retries every job that matches the filters and has failed, was cancelled or dead-lettered, or
    succeeded only partly (or is in a state that --state names): it lists the first ones, and asks. If interrupted, run
    it again for the rest: what was retried once is not retried twice.
    """
    from onetray.domain.bulk import BulkOptions

    check_selection(id, all_, options)
    if id is None and from_stage is not None:
        raise click.UsageError("--from-stage needs the ID of one flow")
    fields: dict[str, Any] = {**acting_user(), "namespace": namespace, "cause": reason}
    with opened(database) as engine:
        if id is None:
            bulk = Bulk("retry", "retry", "retrying", BulkOptions(), fields)
            run_bulk(engine, bulk, options, namespace, as_json)
            return
        located = engine.locate(id, among=JOB, namespace=namespace)
        if located.entity == "flow":
            print_result(engine.retry_flow(located.id, from_stage=from_stage, **fields), as_json, new=True)
            return
        if from_stage is not None:
            raise click.UsageError("--from-stage is only for flows: a task has no stages")
        print_result(engine.redrive(located.id, **fields), as_json, new=True)


@click.command(short_help="Set the priority of a job, or of all that match.")
@click.argument("words", nargs=-1, metavar="[ID] NUMBER", shell_complete=complete_jobs)
@reason_option
@bulk_options
@common
def priority(
    words: tuple[str, ...], all_: bool, reason: str | None, database: str, namespace: str, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Set the priority of a job: higher runs sooner. A flow's counts for its queued tasks and for those added later.

    With --all and without an ID, it sets the priority of every open job that matches the filters: it lists the first
    ones, and asks. The filter --priority is the priority before.
    """
    from onetray.domain.bulk import BulkOptions

    id_, number = _id_and_number(words)
    check_selection(id_, all_, options)
    fields: dict[str, Any] = {**acting_user(), "namespace": namespace, "cause": reason}
    with opened(database) as engine:
        if id_ is None:
            bulk = Bulk("priority", "prioritize", "prioritizing", BulkOptions(priority=number), fields)
            run_bulk(engine, bulk, options, namespace, as_json)
            return
        located = engine.locate(id_, among=JOB, namespace=namespace)
        change = engine.set_priority if located.entity == "task" else engine.set_flow_priority
        print_result(change(located.id, priority=number, **fields), as_json)


def _id_and_number(words: tuple[str, ...]) -> tuple[str | None, int]:
    if len(words) not in (1, 2):
        raise click.UsageError("pass ID and NUMBER, or NUMBER and --all")
    try:
        return words[0] if len(words) == 2 else None, int(words[-1])
    except ValueError:
        raise click.UsageError(f"{words[-1]!r} is not a whole number: pass ID and NUMBER") from None


@click.command(short_help="Replace the metadata of a job.")
@click.argument("id", shell_complete=complete_jobs)
@click.argument("value", type=json_value, metavar="JSON")
@reason_option
@common
def metadata(id: str, value: Any, reason: str | None, database: str, namespace: str, as_json: bool) -> None:
    """Replace the metadata of a job, in any state. `null` removes it."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        replace = engine.set_metadata if located.entity == "task" else engine.set_flow_metadata
        print_result(replace(located.id, value, namespace=namespace, cause=reason, **acting_user()), as_json)


@click.command(short_help="Delete an ended job permanently.")
@click.argument("id", shell_complete=complete_jobs)
@reason_option
@yes_option
@common
def delete(id: str, reason: str | None, yes: bool, database: str, namespace: str, as_json: bool) -> None:
    """Delete an ended job with everything that belongs to it: tasks, events, logs, results and keys."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        confirm(f"Delete the {located.entity} {located.id} permanently?", yes)
        by = acting_user()["actor_name"]
        engine.delete_job(located.id, reason=reason, by=by, namespace=namespace)
    deleted = {"entity": located.entity, "id": located.id, "deleted": True}
    print_json(deleted) if as_json else click.echo(f"{located.entity} {located.id} is deleted")


def print_result(answer: Any, as_json: bool, *, new: bool = False) -> None:
    """Print the entity's state after a command, and the actions that are allowed now."""
    if as_json:
        print_json({**jsonable(answer), "actions": list(answer.actions)})
        return
    entity = getattr(answer, "entity", "task")
    prefix = "existing " if new and answer.repeated else "new " if new else ""
    ending = f", ending as {answer.ending}" if getattr(answer, "ending", None) else ""
    allowed = f"; allowed now: {', '.join(answer.actions)}" if answer.actions else ""
    click.echo(f"{prefix}{entity} {answer.id} is {answer.state}{ending}{allowed}")
