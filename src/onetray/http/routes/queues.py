"""Queues, workers and breakers: list them, pause queues, open and close breakers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from onetray.http.auth.scopes import Operator, Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, returns
from onetray.http.openapi import answers
from onetray.http.params import Limit, Name
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import OpenBreakerBody, ReasonBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1", tags=["fleet"], route_class=NativeRoute)


@router.get("/queues", summary="List queues", **returns(answers.QUEUES))
async def list_queues(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """Each with its number of tasks by state. Counting is expensive: do not poll this often."""
    services = services_of(request)
    queues = await services.read(services.engine.queues, namespace=principal.namespace, limit=limit)
    return Json({"queues": to_json(queues)})


@router.post("/queues/{queue:path}/pause", summary="Pause a queue", **returns(answers.QUEUE_SET),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def pause_queue(request: Request, queue: Name, principal: Principal = Operator) -> Json:
    """Workers claim no more tasks from it. Running tasks continue."""
    services, body = services_of(request), await read_model(request, ReasonBody)
    await services.read(
        services.engine.pause_queue, queue, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return Json({"queue": queue, "paused": True})


@router.post("/queues/{queue:path}/resume", summary="Resume a queue", **returns(answers.QUEUE_SET),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def resume_queue(request: Request, queue: Name, principal: Principal = Operator) -> Json:
    """Workers claim tasks from it again."""
    services, body = services_of(request), await read_model(request, ReasonBody)
    await services.read(
        services.engine.resume_queue, queue, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return Json({"queue": queue, "paused": False})


@router.get("/workers", summary="List workers", **returns(answers.WORKERS))
async def list_workers(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """Workers that registered recently, as they describe themselves."""
    services = services_of(request)
    workers = await services.read(services.engine.workers, namespace=principal.namespace, limit=limit)
    return Json({"workers": to_json(workers)})


@router.get("/breakers", summary="List breakers", **returns(answers.BREAKERS))
async def list_breakers(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """Breakers of kinds that have failed, or that a user has opened."""
    services = services_of(request)
    breakers = await services.read(services.engine.breakers, namespace=principal.namespace, limit=limit)
    return Json({"breakers": to_json(breakers)})


@router.post("/breakers/{kind:path}/open", summary="Open a breaker", **returns(answers.BREAKER_SET),
             **accepts(OpenBreakerBody))  # fmt: skip
async def open_breaker(request: Request, kind: Name, principal: Principal = Operator) -> Json:
    """Workers claim no task of the kind for `for_s`, then one as a trial. Running tasks continue."""
    services, body = services_of(request), await read_model(request, OpenBreakerBody)
    reason = {} if body.reason is None else {"why": body.reason}
    await services.read(
        services.engine.open_breaker, kind, for_s=body.for_s, by=principal.name, namespace=principal.namespace, **reason
    )
    return Json({"kind": kind, "open": True})


@router.post("/breakers/{kind:path}/close", summary="Close a breaker", **returns(answers.BREAKER_SET),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def close_breaker(request: Request, kind: Name, principal: Principal = Operator) -> Json:
    """Workers claim tasks of the kind again, and its failure count is reset."""
    services, body = services_of(request), await read_model(request, ReasonBody)
    await services.read(
        services.engine.close_breaker, kind, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return Json({"kind": kind, "open": False})
