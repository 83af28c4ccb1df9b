"""One job, looked at closely: its tree, its history, its log, its result, and why it is not further."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.domain.errors import JobFailed, NotYet
from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK
from onetray.domain.task import Task, value_of
from onetray.engine.api import EngineApi
from onetray.explain.tasks import COUNTED
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, gives
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Limit, place
from onetray.http.params import cursor as cursor_at
from onetray.http.routes.jobs import job_of
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/jobs/{id}", tags=["jobs"], route_class=NativeRoute)

MAX_STAGES = 100
"""Stages on one page of a tree: each costs a read."""


@router.get("/tree", summary="A flow with its stages and their tasks", **gives(answers.TREE))
async def get_job_tree(
    request: Request,
    id: Id,
    tasks: Annotated[int, Query(ge=0, le=100, description="How many tasks of each stage.")] = 20,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STAGES, description="How many stages.")] = 20,
    principal: Principal = Reader,
) -> Json:
    """The `next` of a stage goes on at `/api/v1/stages/{id}/tasks`. A single task has no stages."""
    services = services_of(request)
    return await services.answer(_tree, services.engine, id, principal.namespace, tasks, place("stages", cursor), limit)


def _tree(engine: EngineApi, id: str, namespace: str, tasks: int, after: int, limit: int) -> dict[str, Any]:
    job = job_of(engine, id, namespace)
    stages = engine.stages(job.id, namespace=namespace, raw=True) if isinstance(job, Flow) else []
    page = list(islice((s for s in stages if s.order > after), limit + 1))
    next_ = cursor_at("stages", page[limit - 1].order) if len(page) > limit else None
    return {"job": views.job(job), "stages": [_branch(engine, s, tasks) for s in page[:limit]], "next": next_}


def _branch(engine: EngineApi, stage: Stage, most: int) -> dict[str, Any]:
    found = engine.members(stage.flow_id, stage=stage.id, limit=most, namespace=stage.namespace) if most else []
    more = stage.counts.total > len(found)
    next_ = cursor_at("tasks", found[-1].key if found else 0) if more else None
    return {"stage": views.stage_line(stage), "tasks": to_json(found), "next": next_}


@router.get("/events", summary="What happened to a job", **gives(answers.EVENTS))
async def list_job_events(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """In order; of a flow also what happened to its stages and tasks. `next` goes on, also with what comes later."""
    services, after = services_of(request), place("events", cursor)
    return await services.answer(_events, services.engine, id, principal.namespace, after, limit)


def _events(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    read = engine.flow_events if job.entity == FLOW.entity else engine.events
    found = read(job.id, namespace=namespace, after=after, limit=limit, raw=True)
    return {"events": to_json(found), "next": cursor_at("events", found[-1].id if found else after)}


@router.get("/logs", summary="A task's log", **gives(answers.LOGS))
async def list_job_logs(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """Lines in order. A flow has no log: ask its tasks."""
    services, after = services_of(request), place("logs", cursor)
    return await services.answer(_logs, services.engine, id, principal.namespace, after, limit)


def _logs(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    found = engine.logs(id, namespace=namespace, after=after, limit=limit, raw=True)
    return {"logs": to_json(found), "next": cursor_at("logs", found[-1].cursor if found else after)}


@router.get("/result", summary="What a job gave", **gives(answers.RESULT))
async def get_job_result(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """409 `not_yet` while it has not ended, `job_failed` when it ended without a result. Large stages have pages."""
    services = services_of(request)
    return await services.answer(_result, services.engine, id, principal.namespace)


def _result(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = job_of(engine, id, namespace)
    facts = {"id": job.id, "entity": _entity(job), "state": job.state}
    if job.state not in (FLOW if isinstance(job, Flow) else TASK).terminal:
        raise NotYet(f"the job is {job.state}: ask again later, or ask why with /explain", **facts, retry_after_s=1)
    if job.state not in (SUCCEEDED, PARTIAL):
        raise JobFailed(f"the job is {job.state} and has no result: see `error`", **facts, error=value_of(job.error))
    if isinstance(job, Task):
        return {**facts, "result": job.result}
    stages = engine.stages(job.id, namespace=namespace, raw=True)
    return {**facts, "result": {stage.name: stage.result for stage in stages}}


@router.get("/explain", summary="Why a job is not further", **gives(answers.EXPLAINED))
async def explain_job(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Each reason, who holds it, and when that ends. None: the next worker that asks may have it.

    `before_it` tasks are claimed before it, or more than these if `more_before_it` says so.
    """
    services = services_of(request)
    return await services.answer(_explain, services.engine, id, principal.namespace)


def _explain(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    reasons = engine.explain(job.id, namespace=namespace)
    alone = job.entity == TASK.entity and not reasons
    ahead = engine.position(job.id, namespace=namespace, most=COUNTED + 1) if alone else None
    more = ahead is not None and ahead > COUNTED
    return {"id": job.id, "entity": job.entity, "reasons": to_json(reasons), "before_it": COUNTED if more else ahead,
            "more_before_it": more}  # fmt: skip


@router.get("/actions", summary="What may be done to a job", **gives(answers.ALLOWED))
async def list_job_actions(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """The moves that the lifecycle allows a user now."""
    services = services_of(request)
    job = await services.read(services.engine.job_status, id, namespace=principal.namespace)
    return Json({"id": job.id, "entity": job.entity, "state": job.state, "actions": list(job.actions)})


@router.get("/progress", summary="How far a job is", **gives(answers.PROGRESS))
async def get_job_progress(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Of a task what it has last `said`; of a flow the numbers of its tasks."""
    services = services_of(request)
    return await services.answer(_progress, services.engine, id, principal.namespace)


def _progress(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    job = engine.job_status(id, namespace=namespace)
    facts = {"id": job.id, "entity": job.entity, "state": job.state}
    if job.entity == TASK.entity:
        last = to_json(engine.progress_of(job.id, namespace=namespace))
        return {**facts, "percentage": None, "current_stage": None, "counts": None, "said": last}
    far = engine.progress(job.id, namespace=namespace)
    return {**facts, "percentage": far.percentage, "current_stage": far.current_stage, "counts": to_json(far.counts),
            "said": None}  # fmt: skip


def _entity(job: Task | Flow) -> str:
    return "task" if isinstance(job, Task) else "flow"
