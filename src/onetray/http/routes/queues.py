"""Queues, workers and breakers: what the work goes through."""

from __future__ import annotations

from fastapi import APIRouter, Request

from onetray.http.auth.scopes import Operator, Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, gives, takes
from onetray.http.openapi import answers
from onetray.http.params import Limit, Name
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import OpenBreakerBody, Why
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1", tags=["fleet"], route_class=NativeRoute)


@router.get("/queues", summary="List queues", **gives(answers.QUEUES))
async def list_queues(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """With how many tasks are where. It counts them: ask for it now and then, not all the time."""
    services = services_of(request)
    return Json(
        {"queues": to_json(await services.read(services.engine.queues, namespace=principal.namespace, limit=limit))}
    )


@router.post("/queues/{queue:path}/pause", summary="Pause a queue", **gives(answers.QUEUE_SET),
             **takes(Why, required=False))  # fmt: skip
async def pause_queue(request: Request, queue: Name, principal: Principal = Operator) -> Json:
    """Nothing more is claimed from it. What runs goes on."""
    services = services_of(request)
    await read_model(request, Why)
    await services.read(services.engine.pause_queue, queue, by=principal.name, namespace=principal.namespace)
    return Json({"queue": queue, "paused": True})


@router.post("/queues/{queue:path}/resume", summary="Resume a queue", **gives(answers.QUEUE_SET),
             **takes(Why, required=False))  # fmt: skip
async def resume_queue(request: Request, queue: Name, principal: Principal = Operator) -> Json:
    """Tasks are claimed from it again."""
    services = services_of(request)
    await read_model(request, Why)
    await services.read(services.engine.resume_queue, queue, namespace=principal.namespace)
    return Json({"queue": queue, "paused": False})


@router.get("/workers", summary="List workers", **gives(answers.WORKERS))
async def list_workers(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """Those that have said something lately, as they describe themselves."""
    services = services_of(request)
    return Json(
        {"workers": to_json(await services.read(services.engine.workers, namespace=principal.namespace, limit=limit))}
    )


@router.get("/breakers", summary="List breakers", **gives(answers.BREAKERS))
async def list_breakers(request: Request, limit: Limit = 1_000, principal: Principal = Reader) -> Json:
    """Of all kinds that have failed, or were opened by hand."""
    services = services_of(request)
    return Json(
        {"breakers": to_json(await services.read(services.engine.breakers, namespace=principal.namespace, limit=limit))}
    )


@router.post("/breakers/{kind:path}/open", summary="Open a breaker", **gives(answers.BREAKER_SET),
             **takes(OpenBreakerBody))  # fmt: skip
async def open_breaker(request: Request, kind: Name, principal: Principal = Operator) -> Json:
    """No task of the kind is claimed for a while. Then one is tried. What runs goes on."""
    services, body = services_of(request), await read_model(request, OpenBreakerBody)
    why = {} if body.reason is None else {"why": body.reason}
    await services.read(
        services.engine.open_breaker, kind, for_s=body.for_s, by=principal.name, namespace=principal.namespace, **why
    )
    return Json({"kind": kind, "open": True})


@router.post("/breakers/{kind:path}/close", summary="Close a breaker", **gives(answers.BREAKER_SET),
             **takes(Why, required=False))  # fmt: skip
async def close_breaker(request: Request, kind: Name, principal: Principal = Operator) -> Json:
    """Tasks of the kind are claimed again, and the failures that were counted are forgotten."""
    services = services_of(request)
    await read_model(request, Why)
    await services.read(services.engine.close_breaker, kind, namespace=principal.namespace)
    return Json({"kind": kind, "open": False})
