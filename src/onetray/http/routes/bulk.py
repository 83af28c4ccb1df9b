"""Bulk operations: preview, start, watch, stop and resume an action on all jobs that match."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from onetray.domain.bulk import BulkOperation
from onetray.domain.errors import Forbidden
from onetray.domain.token import OPERATE, READ
from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Operator, Principal, Reader, allow
from onetray.http.json_answers import Json, iso_time, to_json
from onetray.http.native_route import NativeRoute, accepts, own_key, returns
from onetray.http.openapi import answers
from onetray.http.params import Id, Limit
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import BulkBody, BulkPreviewBody, ReasonBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/bulk", tags=["bulk operations"], route_class=NativeRoute)

ReaderOrOperator = Depends(allow(READ, OPERATE))


@router.get("", summary="List bulk operations, newest first", **returns(answers.BULKS))
async def list_bulk_operations(
    request: Request,
    unfinished: Annotated[bool, Query(description="Only those that run or are paused.")] = False,
    limit: Limit = 100,
    principal: Principal = ReaderOrOperator,
) -> Json:
    """The last thousand of the namespace are kept."""
    services = services_of(request)
    found = await services.read(
        services.engine.bulks, unfinished=unfinished, limit=limit, namespace=principal.namespace
    )
    return Json({"bulk_operations": [_view(operation) for operation in found]})


@router.post(
    "/preview", summary="Preview a bulk operation", **returns(answers.BULK_PREVIEW), **accepts(BulkPreviewBody)
)
@own_key
async def preview_bulk_operation(request: Request, principal: Principal = Reader) -> Json:
    """Returns how many jobs or dead letters match now, and the first ones. With `more`, there are more than `count`:
    among many jobs, the search ends early."""
    services, body = services_of(request), await read_model(request, BulkPreviewBody)
    return await services.answer(_preview, services.engine, body, principal.namespace)


def _preview(engine: EngineApi, body: BulkPreviewBody, namespace: str) -> Any:
    return to_json(engine.preview_bulk(body.action, body.filters.chosen, limit=body.limit, namespace=namespace))


@router.post("", summary="Start a bulk operation", **returns(answers.BULK, 201), **accepts(BulkBody))
async def start_bulk_operation(request: Request, principal: Principal = Operator) -> Json:
    """Acts on all jobs that match, in the background: any worker or server with a janitor carries it out. Jobs that are
    submitted afterwards are not affected. Filters also need the scope `read`.

    With `canary`, a redrive pauses after that many dead letters. `canary_states` shows how their new tasks do: resume
    it, or stop it.
    """
    services, body = services_of(request), await read_model(request, BulkBody)
    if body.filters.chosen and not principal.has(READ):
        # What matches reveals something about jobs.
        raise Forbidden(f"to filter, the token {principal.name!r} also needs the scope {READ}", needs=[READ])
    started = await services.read(
        services.engine.start_bulk, body.action, body.filters.chosen, by=principal.name, namespace=principal.namespace,
        **body.options,
    )  # fmt: skip
    return Json(_view(started), status_code=201, headers={"Location": f"/api/v1/bulk/{started.id}"})


@router.get("/{id}", summary="Get a bulk operation", **returns(answers.BULK))
async def get_bulk_operation(request: Request, id: Id, principal: Principal = ReaderOrOperator) -> Json:
    """Returns how far it is, and how the tasks of its canary do."""
    services = services_of(request)
    return Json(_view(await services.read(services.engine.bulk, id, namespace=principal.namespace)))


@router.post("/{id}/stop", summary="Stop a bulk operation", **returns(answers.BULK),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def stop_bulk_operation(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """What it has done so far stays done."""
    return await _change(request, id, principal, services_of(request).engine.stop_bulk)


@router.post("/{id}/resume", summary="Resume a paused bulk operation", **returns(answers.BULK),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def resume_bulk_operation(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Continues after the canary."""
    return await _change(request, id, principal, services_of(request).engine.resume_bulk)


async def _change(request: Request, id: str, principal: Principal, change: Any) -> Json:
    body = await read_model(request, ReasonBody)
    changed = await services_of(request).read(
        change, id, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return Json(_view(changed))


def _view(operation: BulkOperation) -> dict[str, Any]:
    times = {name: iso_time(operation.filters[name]) for name in ("since", "until") if name in operation.filters}
    view: dict[str, Any] = to_json(operation)
    return {**view, "filters": {**operation.filters, **times}}
