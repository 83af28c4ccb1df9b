"""Jobnik's lists: jobs, stages and tasks by their filters, with what is below them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from onetray.dialects.calls import Call, SingleStage, flow_of, flow_of_details, single_stage, stage_of, stages_of
from onetray.dialects.jobnik import values as v
from onetray.dialects.paging import MAX_ITEMS, PageQuery, listed, listed_from
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Stage
from onetray.domain.listing import JobSummary
from onetray.domain.task import Task


class JobQuery(PageQuery):
    job_name: str | None = None
    from_date: datetime | None = None
    end_date: datetime | None = None
    priority: v.Priority | None = None
    should_return_stages: bool = False


class StageQuery(PageQuery):
    job_id: v.Id | None = None
    stage_type: str | None = None
    stage_operation_status: v.StageStatus | None = None
    should_return_tasks: bool = False


class TaskQuery(PageQuery):
    stage_id: v.Id | None = None
    stage_type: str | None = None
    from_date: datetime | None = None
    end_date: datetime | None = None
    status: v.TaskStatus | None = None


def _times(query: JobQuery | TaskQuery) -> dict[str, int]:
    """Dates without a time zone are in UTC."""
    given = {"since": query.from_date, "until": query.end_date}
    return {
        name: max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6))
        for name, at in given.items()
        if at is not None
    }


def jobs(on: Call, query: JobQuery) -> Any:
    priority = None if query.priority is None else v.PRIORITIES[query.priority]
    read = partial(on.read, on.engine.jobs, kind=query.job_name, priority=priority, **_times(query))
    return listed(query, read, partial(_jobs, on, query.should_return_stages), on.services.config.jobnik_pages)


def _jobs(on: Call, with_stages: bool, jobs: Sequence[JobSummary]) -> list[Any]:
    found = on.read(on.engine.job_details, [job.key for job in jobs], lines=0) if jobs else []
    if not with_stages:
        return [v.as_job(flow_of_details(each)) for each in found]
    flows = [each.flow.id for each in found if each.flow is not None]
    stages: dict[str, list[Stage]] = {each.task.id: [single_stage(each.task)] for each in found if each.task}
    for stage in on.read(on.engine.stages_of_flows, flows):
        stages.setdefault(stage.flow_id, []).append(stage)
    return [v.as_job(flow_of_details(each), stages.get(each.job.id, [])) for each in found]


def stages(on: Call, query: StageQuery) -> Any:
    states = [s for s, shown in v.STAGE_STATES.items() if shown == query.stage_operation_status]
    show = partial(with_tasks, on) if query.should_return_tasks else lambda found: [v.as_stage(s) for s in found]
    pages = on.services.config.jobnik_pages
    if query.job_id is None:
        return listed(query, partial(on.read, on.engine.find_stages, type=query.stage_type, states=states), show, pages)
    found = stages_of(on.engine, on.read(flow_of, on.engine, query.job_id))
    wanted = [s for s in found if query.stage_type in (None, s.type) and (not states or s.state in states)]
    return listed_from(query, wanted, show, pages)


def with_tasks(on: Call, stages: Sequence[Stage]) -> list[Any]:
    """Stages with all their tasks."""
    tasks: dict[str, list[Task]] = {}
    found = on.read(on.engine.tasks_of_stages, [s.key for s in stages], limit=MAX_ITEMS)
    if len(found) == MAX_ITEMS:
        raise InvalidInput(f"these stages have {MAX_ITEMS:,} tasks or more: list them by pages", field="page")
    found += on.read(on.engine.tasks_by_id, [s.id for s in stages if isinstance(s, SingleStage)])
    for task in found:
        tasks.setdefault(task.stage_id or task.id, []).append(task)
    return [v.as_stage(stage, tasks.get(stage.id, [])) for stage in stages]


def tasks(on: Call, query: TaskQuery) -> Any:
    wanted = "PENDING" if query.status == v.RETRIED else query.status
    states = [s for s, shown in v.TASK_STATES.items() if shown == wanted]
    attempted = query.status == v.RETRIED if wanted == "PENDING" else None
    if query.stage_id is not None and isinstance(stage := on.read(stage_of, on.engine, query.stage_id), SingleStage):
        return listed_from(query, on.read(on.engine.tasks_by_id, [stage.id]), _tasks, on.services.config.jobnik_pages)
    read = partial(
        on.read, on.engine.find_tasks, stage_type=query.stage_type, states=states, attempted=attempted,
        stage=query.stage_id, **_times(query),
    )  # fmt: skip
    return listed(query, read, _tasks, on.services.config.jobnik_pages)


def _tasks(found: Sequence[Task]) -> list[Any]:
    return [v.as_task(task) for task in found]
