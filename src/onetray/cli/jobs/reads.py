"""`onetray jobs list`, `show`, `tree`, `explain` and `actions`: the commands that only read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from onetray.cli.completion import complete_jobs
from onetray.cli.format import counted, moment
from onetray.cli.jobs.filters import filter_options, filters_of
from onetray.cli.options import at_option, common, limit_option, opened
from onetray.cli.output import jsonable, print_json, print_json_list
from onetray.cli.show import flow_facts, print_errors, print_past, print_stages, print_task, print_timeline, state_of
from onetray.cli.tables import one_line, print_facts, print_table

if TYPE_CHECKING:
    from onetray.domain.flow import Stage
    from onetray.domain.listing import JobPage, JobSummary
    from onetray.engine.api import EngineApi

JOB = ("task", "flow")
ANY = ("task", "stage", "flow")
SHOWN_TASKS = 20


@click.command("list", short_help="List jobs, newest first.")
@filter_options
@click.option("--before", metavar="ID", help="Start after this job: the last one of the previous page.")
@click.option("--page", type=int, help="The number of a page of --limit jobs, from 1.")
@click.option("--total", is_flag=True, help="Count all jobs, up to a million.")
@limit_option
@common
def list_(
    before: str | None, page: int | None, total: bool, limit: int, database: str, namespace: str, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """List jobs, single tasks and flows together, newest first."""
    with opened(database) as engine:
        now = engine.now()
        filters = filters_of(options, now, namespace)
        start = None
        if before is not None:
            start = engine.job_key(engine.locate(before, among=JOB, namespace=namespace).id, namespace=namespace)
        first = engine.jobs(**filters, before=start, page=page, limit=limit, total=total)
        jobs, has_more = _fill_page(engine, filters, first, limit)
        percentages = _percentages(engine, jobs, namespace)
    next_ = jobs[-1].id if has_more and jobs else None
    if as_json:
        shown = [{**jsonable(job), "percentage": percentages.get(job.id)} for job in jobs]
        print_json_list("jobs", shown, next_=next_, before=next_, total=first.total)
        return
    print_jobs(jobs, now, percentages)
    if first.total is not None:
        click.echo(f"{counted(first.total, 'job')} in total", err=True)
    if next_:
        click.echo(f"There may be more: --before {next_}", err=True)


def print_jobs(jobs: Sequence[JobSummary], now: int, percentages: Mapping[str, int] | None = None) -> None:
    print_table(
        ("id", "job", "state", "queue", "progress", "submitted"),
        [
            (j.id, j.kind, state_of(j), j.queue, _progress(j, percentages or {}), moment(j.created_at, now))
            for j in jobs
        ],
    )


def _fill_page(engine: EngineApi, filters: dict[str, Any], first: JobPage, limit: int) -> tuple[list[JobSummary], bool]:
    jobs, before = list(first.jobs), first.before
    while before is not None and len(jobs) < limit:
        page = engine.jobs(**filters, before=before, limit=limit - len(jobs))
        jobs += page.jobs
        before = page.before
    return jobs, before is not None


def _percentages(engine: EngineApi, jobs: list[JobSummary], namespace: str) -> dict[str, int]:
    from onetray.domain.errors import NotFound

    try:
        return engine.percentages([job.id for job in jobs], namespace=namespace)
    except NotFound:
        return {}  # A server of an older version does not have this read.


def _progress(job: JobSummary, percentages: Mapping[str, int]) -> str:
    """As "50 %, stage 1/2" or "attempt 1/3"."""
    done = f"{percentages[job.id]} %, " if job.id in percentages else ""
    if job.entity == "flow":
        return f"{done}stage {job.stages - job.stages_open}/{job.stages}"
    return f"{done}attempt {job.attempts}/{job.max_attempts}"


@click.command(short_help="Show one job.")
@click.argument("id", required=False, shell_complete=complete_jobs)
@click.option("--alias", metavar="TEXT", help="Find it by the alias that its submitter has chosen, instead of its id.")
@at_option
@common
def show(id: str | None, alias: str | None, at: int | None, database: str, namespace: str, as_json: bool) -> None:
    """Show one job with all its fields: a task, or a flow with its stages and its errors. With --at, as it was right
    after one of its events: `onetray jobs events` lists them."""
    if (id is None) == (alias is None):
        raise click.UsageError("pass the ID of a job, or its --alias")
    with opened(database) as engine:
        if alias is not None:
            found = engine.by_alias(alias, namespace=namespace)
            id = found.job_id if found.entity == "context" else found.id
        located, now = engine.locate(str(id), among=JOB, namespace=namespace), engine.now()
        if at is not None:
            print_past(engine.at(located.id, at, namespace=namespace), now, as_json)
            return
        if located.entity == "task":
            print_task(engine, located.id, namespace, as_json)
            return
        flow = engine.flow(located.id, namespace=namespace)
        progress = engine.progress(located.id, namespace=namespace)
        errors = engine.flow_errors(located.id, namespace=namespace)
    if as_json:
        print_json({"flow": flow, "progress": progress, "errors": errors})
        return
    print_facts(flow_facts(flow, progress, now))
    click.echo()
    print_stages(list(progress.stages), now)
    print_errors(errors)


@click.command(short_help="Show a flow as a tree.")
@click.argument("id", shell_complete=complete_jobs)
@click.option(
    "--tasks",
    "most",
    type=click.IntRange(0, 1_000),
    default=SHOWN_TASKS,
    show_default=True,
    help="The maximum number of tasks of each stage.",
)
@common
def tree(id: str, most: int, database: str, namespace: str, as_json: bool) -> None:
    """Show a flow, its stages and their tasks as a tree. Of large stages it shows only the first tasks."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        if located.entity == "task":
            # A member of a flow stands for its flow.
            located = engine.locate(engine.task(located.id, namespace=namespace).job_id, namespace=namespace)
        if located.entity == "task":
            raise click.UsageError(f"{located.id} is a single task and has no tree: see `onetray jobs show`")
        flow = engine.flow(located.id, namespace=namespace)
        stages = engine.stages(located.id, namespace=namespace)
        branches = [(s, _tasks(engine, s, most)) for s in stages]
    if as_json:
        print_json({"flow": flow, "stages": [{"stage": s, "tasks": tasks} for s, tasks in branches]})
        return
    click.echo(f"{one_line(flow.name)}  {state_of(flow)}  {flow.id}")
    for i, (stage, tasks) in enumerate(branches):
        for line in _branch(stage, tasks, last=i == len(branches) - 1):
            click.echo(line)


def _tasks(engine: EngineApi, stage: Stage, most: int) -> list[Any]:
    if not most:
        return []
    return engine.members(stage.flow_id, stage=stage.id, limit=most, namespace=stage.namespace)


def _branch(stage: Stage, tasks: list[Any], *, last: bool) -> Iterator[str]:
    fork, name = "└─" if last else "├─", one_line(stage.name)
    yield f"{fork} {stage.order}. {name}  {state_of(stage)}  {stage.percentage} %  {stage.id}"
    stem = "   " if last else "│  "
    lines = [f"{one_line(t.name or t.kind)}  {t.state}  {t.id}" for t in tasks]
    if stage.counts.total > len(tasks):
        lines.append(f"and {stage.counts.total - len(tasks):,} more" if tasks else counted(stage.counts.total, "task"))
    for i, line in enumerate(lines):
        yield f"{stem}{'└─' if i == len(lines) - 1 else '├─'} {line}"


@click.command(short_help="Show how long a job was in each state.")
@click.argument("id", shell_complete=complete_jobs)
@click.option(
    "--tasks",
    "most",
    type=click.IntRange(0, 1_000),
    default=100,
    show_default=True,
    help="The maximum number of tasks of a flow.",
)
@common
def timeline(id: str, most: int, database: str, namespace: str, as_json: bool) -> None:
    """Show how long a job was in each state: a task, or a flow with its stages and its first tasks. The event of a line
    is the one that began the state: `onetray jobs show --at` shows the job as it was then."""
    with opened(database) as engine:
        located = engine.locate(id, among=JOB, namespace=namespace)
        found = engine.timeline(located.id, tasks=most, namespace=namespace)
    if as_json:
        print_json(found)
    else:
        print_timeline(found)


@click.command(short_help="Explain why a job, stage or task does not run.")
@click.argument("id", shell_complete=complete_jobs)
@common
def explain(id: str, database: str, namespace: str, as_json: bool) -> None:
    """Explain why a job, a stage or a task does not run or has not ended: each reason, its owner and its end. Of an
    ended one, explain how it ended and how to run it again."""
    from onetray.explain.tasks import COUNTED, SAY_WHEN, is_claimable

    with opened(database) as engine:
        located, now = engine.locate(id, among=ANY, namespace=namespace), engine.now()
        reasons = engine.explain(located.id, namespace=namespace)
        place = None
        if located.entity == "task" and is_claimable(reasons):
            place = engine.position(located.id, namespace=namespace, most=COUNTED + 1)
    has_more = place is not None and place > COUNTED
    if as_json:
        position = {"before_it": COUNTED if has_more else place, "more_before_it": has_more}
        print_json({"entity": located.entity, "id": located.id, "reasons": reasons, **position})
        return
    for reason in reasons:
        says_when = reason.ends_at is None or reason.code in SAY_WHEN
        until = "" if says_when else f"; ends {moment(reason.ends_at, now)}"
        click.echo(one_line(f"{reason.code}: {reason.message}{until}"))
    if not reasons:
        many = f"more than {COUNTED:,} tasks" if has_more else counted(place or 0, "task")
        ahead = "" if place is None else f"; {many} would be claimed before it"
        click.echo(f"nothing blocks it: a worker may claim it now{ahead}")


@click.command(short_help="List the allowed actions on a job, stage or task.")
@click.argument("id", shell_complete=complete_jobs)
@common
def actions(id: str, database: str, namespace: str, as_json: bool) -> None:
    """List what would be accepted now from a user: the transitions of the lifecycle, and running an ended job again."""
    with opened(database) as engine:
        located = engine.locate(id, among=ANY, namespace=namespace)
        entity: Any = getattr(engine, located.entity)(located.id, namespace=namespace)
    if as_json:
        print_json({"entity": located.entity, "id": located.id, "state": entity.state, "actions": list(entity.actions)})
        return
    for action in entity.actions:
        click.echo(action)
    if not entity.actions:
        click.echo(f"none: the {located.entity} is {entity.state}", err=True)
