"""Details of one job: its tree, events, log, result, errors and progress, and why it does not run."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.app.failure import job_failed
from onetray.domain.errors import JobFailed, NotYet
from onetray.domain.flow import Flow, Stage, errors_of_task
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK
from onetray.domain.task import Task
from onetray.domain.token import OPERATE, SUBMIT
from onetray.engine.api import EngineApi
from onetray.explain.tasks import COUNTED, is_claimable
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, returns
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Limit, PastTasks, cursor_at, cursor_position
from onetray.http.routes.jobs import job_of
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/jobs/{id}", tags=["jobs"], route_class=NativeRoute)

WHY_FAILED = ("error", "task", "stage", "error_class", "error_message")
MAX_STAGES = 100
"""Stages on one page of a tree: each costs a read."""


@router.get("/tree", summary="Get a flow with its stages and tasks", **returns(answers.TREE))
async def get_job_tree(
    request: Request,
    id: Id,
    tasks: Annotated[int, Query(ge=0, le=100, description="The maximum number of tasks per stage.")] = 20,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STAGES, description="The maximum number of stages.")] = 20,
    principal: Principal = Reader,
) -> Json:
    """`next` of a stage is a cursor for `/api/v1/stages/{id}/tasks`. A single task has no stages."""
    services, after = services_of(request), cursor_position("stages", cursor)
    return await services.answer(_tree, services.engine, id, principal.namespace, tasks, after, limit)


def _tree(engine: EngineApi, id: str, namespace: str, tasks: int, after: int, limit: int) -> dict[str, Any]:
    job = job_of(engine, id, namespace)
    stages = engine.stages(job.id, namespace=namespace, raw=True) if isinstance(job, Flow) else []
    page = list(islice((s for s in stages if s.order > after), limit + 1))
    next_ = cursor_at("stages", page[limit - 1].order) if len(page) > limit else None
    return {"job": views.job(job), "stages": [_branch(engine, s, tasks) for s in page[:limit]], "next": next_}


def _branch(engine: EngineApi, stage: Stage, limit: int) -> dict[str, Any]:
    tasks = engine.members(stage.flow_id, stage=stage.id, limit=limit, namespace=stage.namespace) if limit else []
    more = stage.counts.total > len(tasks)
    next_ = cursor_at("tasks", tasks[-1].key if tasks else 0) if more else None
    return {"stage": views.stage_line(stage), "tasks": to_json(tasks), "next": next_}


@router.get("/events", summary="List a job's events", **returns(answers.EVENTS))
async def list_job_events(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """In order; a flow's events include those of its stages and tasks. `next` also finds events that follow later."""
    services, after = services_of(request), cursor_position("events", cursor)
    return await services.answer(_events, services.engine, id, principal.namespace, after, limit)


def _events(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    read = engine.flow_events if job.entity == FLOW.entity else engine.events
    events = read(job.id, namespace=namespace, after=after, limit=limit, raw=True)
    return {"events": to_json(events), "next": cursor_at("events", events[-1].id if events else after)}


@router.get("/timeline", summary="Get a job's states over time", **returns(answers.TIMELINE))
async def get_job_timeline(request: Request, id: Id, tasks: PastTasks = 100, principal: Principal = Reader) -> Json:
    """How long a task, or a flow with its stages and its first tasks, was in each open state, from the log. An interval
    names the event that began it."""
    services = services_of(request)
    return await services.answer(_timeline, services.engine, id, principal.namespace, tasks)


def _timeline(engine: EngineApi, id: str, namespace: str, tasks: int) -> dict[str, Any]:
    return dict(to_json(engine.timeline(id, tasks=tasks, namespace=namespace)))


@router.get("/logs", summary="List a task's log lines", **returns(answers.LOGS))
async def list_job_logs(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """In order. A flow has no log: read those of its tasks. `next` also finds lines that follow later."""
    services, after = services_of(request), cursor_position("logs", cursor)
    return await services.answer(_logs, services.engine, id, principal.namespace, after, limit)


def _logs(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    lines = engine.logs(id, namespace=namespace, after=after, limit=limit, raw=True)
    return {"logs": to_json(lines), "next": cursor_at("logs", lines[-1].cursor if lines else after)}


@router.get("/result", summary="Get a job's result", **returns(answers.RESULT))
async def get_job_result(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Returns 409 `not_yet` while the job is open, 409 `job_failed` if it ended without a result. Page through the
    results of a large stage at `/api/v1/stages/{id}/results`."""
    services = services_of(request)
    return await services.answer(_result, services.engine, id, principal.namespace)


def _result(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = job_of(engine, id, namespace)
    facts = {"id": job.id, "entity": _entity(job), "state": job.state}
    if job.state not in (FLOW if isinstance(job, Flow) else TASK).terminal:
        raise NotYet(f"the job is {job.state}: try again later, or see /explain", **facts, retry_after_s=1)
    if job.state not in (SUCCEEDED, PARTIAL):
        failure = job_failed(engine, job)
        raise JobFailed(f"{failure}; it has no result", **facts, **{name: failure.facts[name] for name in WHY_FAILED})
    if isinstance(job, Task):
        return {**facts, "result": job.result}
    stages = engine.stages(job.id, namespace=namespace, raw=True)
    return {**facts, "result": {stage.name: stage.result for stage in stages}}


@router.get("/explain", summary="Explain why a job does not run", **returns(answers.EXPLAINED))
async def explain_job(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Each reason has the time when it ends, and who can end it earlier; that of an ended job says how it ended.
    Without reasons, a worker can claim the task. That no registered worker does is a reason, too.

    `before_it` is the number of tasks that are claimed first; with `more_before_it`, there are more than that.
    """
    services = services_of(request)
    return await services.answer(_explain, services.engine, id, principal.namespace)


def _explain(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    reasons = engine.explain(job.id, namespace=namespace)
    is_ready = job.entity == TASK.entity and is_claimable(reasons)
    ahead = engine.position(job.id, namespace=namespace, most=COUNTED + 1) if is_ready else None
    more = ahead is not None and ahead > COUNTED
    return {"id": job.id, "entity": job.entity, "reasons": to_json(reasons), "before_it": COUNTED if more else ahead,
            "more_before_it": more}  # fmt: skip


@router.get("/actions", summary="List the allowed actions", **returns(answers.ALLOWED))
async def list_job_actions(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """The actions that would be accepted now from this token and change something. In the other answers, `actions` are
    those of a token with every scope."""
    services = services_of(request)
    job = await services.read(services.engine.job_status, id, namespace=principal.namespace)
    allowed = [name for name in job.actions if principal.has(SUBMIT if name == FLOW.open.name else OPERATE)]
    return Json({"id": job.id, "entity": job.entity, "state": job.state, "actions": allowed})


@router.get("/progress", summary="Get a job's progress", **returns(answers.PROGRESS))
async def get_job_progress(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """For a task, `said` is the last progress that its handler reported; its percentage is null if that is unknown. A
    flow has a percentage, also for each stage, that includes what its running tasks have reported, and task counts."""
    services = services_of(request)
    return await services.answer(_progress, services.engine, id, principal.namespace)


def _progress(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    facts = {"id": job.id, "entity": job.entity, "state": job.state}
    if job.entity == TASK.entity:
        reported = to_json(engine.progress_of(job.id, namespace=namespace))
        share = engine.percentages([job.id], namespace=namespace).get(job.id)
        return {**facts, "percentage": share, "current_stage": None, "counts": None, "stages": [], "said": reported}
    progress = engine.progress(job.id, namespace=namespace)
    return {
        **facts,
        "percentage": progress.percentage,
        "current_stage": progress.current_stage,
        "counts": to_json(progress.counts),
        "said": None,
        "stages": [{"name": s.name, "state": s.state, "percentage": s.percentage} for s in progress.stages],
    }


@router.get("/errors", summary="List what went wrong in a job", **returns(answers.ERRORS))
async def list_job_errors(request: Request, id: Id, limit: Limit = 100, principal: Principal = Reader) -> Json:
    """Which task of which stage failed, or succeeded only in part, with which message: the first errors of each stage,
    in order. `total` counts all of them."""
    services = services_of(request)
    return await services.answer(_errors, services.engine, id, principal.namespace, limit)


def _errors(engine: EngineApi, id: str, namespace: str, limit: int) -> dict[str, Any]:
    job = job_of(engine, id, namespace)
    if isinstance(job, Task):
        found = errors_of_task(job)
    else:
        found = engine.flow_errors(job.id, namespace=namespace, limit=limit)
    return {"errors": to_json(found.errors), "total": found.total}


def _entity(job: Task | Flow) -> str:
    return "task" if isinstance(job, Task) else "flow"
