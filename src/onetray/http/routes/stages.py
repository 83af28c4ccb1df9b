"""Read stages and add tasks to them. Single commands (approve, skip, …) are in commands.py."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from onetray.domain.flow_commands import AddTasks
from onetray.engine.api import EngineApi
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader, Submitter
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, returns
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Limit, cursor_at, cursor_position, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import MembersBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/stages/{id}", tags=["stages"], route_class=NativeRoute)


@router.get("", summary="Get a stage", **returns(answers.STAGE))
async def get_stage(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """Returns a stage with the counts of its tasks and, if it needs one, its approval."""
    services = services_of(request)
    return await services.answer(_stage, services.engine, id, principal.namespace)


def _stage(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    stage: dict[str, Any] = to_json(engine.stage(id, namespace=namespace, raw=True))
    return stage


@router.get("/tasks", summary="List a stage's tasks", **returns(answers.MEMBERS))
async def list_stage_tasks(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """In the order in which they were added."""
    services, after = services_of(request), cursor_position("tasks", cursor)
    return await services.answer(_tasks, services.engine, id, principal.namespace, after, limit)


def _tasks(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    tasks = engine.stage_members(id, namespace=namespace, after=after, limit=limit)
    return {"tasks": to_json(tasks), "next": cursor_at("tasks", tasks[-1].key) if len(tasks) == limit else None}


@router.get("/results", summary="List the results of a stage's tasks", **returns(answers.RESULTS))
async def list_stage_results(
    request: Request, id: Id, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """In the order of the tasks. Also works for a stage with too many tasks to collect their results in `result`."""
    services, after = services_of(request), cursor_position("results", cursor)
    return await services.answer(_results, services.engine, id, principal.namespace, after, limit)


def _results(engine: EngineApi, id: str, namespace: str, after: int, limit: int) -> dict[str, Any]:
    rows = engine.stage_results(id, namespace=namespace, after=after, limit=limit, raw=True)
    results = [{"id": row.id, "name": row.name, "state": row.state, "result": row.result} for row in rows]
    return {"results": results, "next": cursor_at("results", rows[-1].key) if len(rows) == limit else None}


@router.post("/tasks", summary="Add tasks to a stage", **returns(answers.FLOW_PLACED, 201), **accepts(MembersBody))
async def add_stage_tasks(request: Request, id: Id, principal: Principal = Submitter) -> Json:
    """The stage must not have ended, and must take more tasks: see `takes_more`."""
    body = await read_model(request, MembersBody)
    command = AddTasks(flow=id, **body.field_values(), **headers_of_request(request, principal))
    return Json(views.placed_view(await services_of(request).call(command)), status_code=201)
