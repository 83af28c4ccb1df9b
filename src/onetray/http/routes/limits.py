"""Limits and weights: list and show them, see who uses them, and change them while workers run."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Query, Request

from onetray.http.auth.scopes import Operator, Principal, Reader
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, accepts, returns
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Kind, Limit, cursor_at, cursor_position
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import ReasonBody, SetLimitBody, SetWeightBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/limits", tags=["limits"], route_class=NativeRoute)

LimitId = Annotated[int, Path(ge=1, le=2**53, description="The id of a limit.", examples=[12])]
OfQueue = Annotated[
    str | None, Query(min_length=1, description="Only of this queue.", json_schema_extra={LIMIT: "name_chars"})
]
OfValue = Annotated[
    str | None,
    Query(min_length=1, max_length=500, description='Of a limit with a key: a value of it, as JSON (`"acme"`).'),
]
ForEvent = Annotated[
    str | None, Query(min_length=1, description="For the event.", json_schema_extra={LIMIT: "reason_chars"})
]
VALUES, HOLDERS = "values", "holders"


@router.get("", summary="List limits", **returns(answers.LIMITS))
async def list_limits(
    request: Request, queue: OfQueue = None, kind: Kind = None, limit: Limit = 1_000, principal: Principal = Reader
) -> Json:
    """Each with how much of it is used. Numbers in force, and those that the code declares."""
    services = services_of(request)
    found = await services.read(
        services.engine.limits, queue=queue, kind=kind, limit=limit, namespace=principal.namespace
    )
    return Json({"limits": to_json(found)})


@router.put("", summary="Set a limit", **returns(answers.LIMIT), **accepts(SetLimitBody))
async def set_limit(request: Request, principal: Principal = Operator) -> Json:
    """Takes effect at once, and has precedence over what the code declares until it is reset. A lowered limit stops no
    task that runs."""
    services, body = services_of(request), await read_model(request, SetLimitBody)
    limit_id = await services.read(
        services.engine.set_limit, **body.model_dump(), by=principal.name, namespace=principal.namespace
    )
    return await _limit(request, limit_id, principal)


@router.get("/weights", summary="List weights", **returns(answers.WEIGHTS))
async def list_weights(
    request: Request, kind: Kind = None, limit: Limit = 1_000, principal: Principal = Reader
) -> Json:  # fmt: skip
    """The shares of values of what kinds are fair by, if they are not 1."""
    services = services_of(request)
    found = await services.read(services.engine.weights, kind=kind, limit=limit, namespace=principal.namespace)
    return Json({"weights": to_json(found)})


@router.put("/weights", summary="Set a weight", **returns(answers.WEIGHT), **accepts(SetWeightBody))
async def set_weight(request: Request, principal: Principal = Operator) -> Json:
    """Sets the share of one value of what a kind is fair by: 2 is twice as much as the default, 1."""
    services, body = services_of(request), await read_model(request, SetWeightBody)
    await services.read(
        services.engine.set_weight, body.kind, orjson.dumps(body.value).decode(), body.weight, reason=body.reason,
        by=principal.name, namespace=principal.namespace,
    )  # fmt: skip
    return Json({"kind": body.kind, "value": body.value, "weight": body.weight})


@router.get("/{id}", summary="Get a limit", **returns(answers.LIMIT))
async def get_limit(request: Request, id: LimitId, principal: Principal = Reader) -> Json:
    """Its numbers, and how much of it is used."""
    return await _limit(request, id, principal)


@router.get("/{id}/values", summary="List the values of a limit's key", **returns(answers.LIMIT_VALUES))
async def list_limit_values(
    request: Request, id: LimitId, cursor: Cursor = None, limit: Limit = 100, principal: Principal = Reader
) -> Json:
    """The values that tasks have had, each with how much of the limit it uses. A limit without a key has one, null."""
    services = services_of(request)
    found = await services.read(
        services.engine.limit_values, id, after=cursor_position(VALUES, cursor), limit=limit,
        namespace=principal.namespace,
    )  # fmt: skip
    next_ = cursor_at(VALUES, found[-1].cursor) if len(found) == limit else None
    return Json({"values": to_json(found), "next": next_})


@router.get("/{id}/holders", summary="List the tasks that hold slots of a limit", **returns(answers.LIMIT_HOLDERS))
async def list_limit_holders(
    request: Request, id: LimitId, value: OfValue = None, cursor: Cursor = None, limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:  # fmt: skip
    """A slot belongs to a lease: it comes back when the task ends, or when the lease of a lost worker expires."""
    services, skip = services_of(request), cursor_position(HOLDERS, cursor)
    found = await services.read(
        services.engine.limit_holders, id, value=value, after=skip, limit=limit, namespace=principal.namespace
    )
    next_ = cursor_at(HOLDERS, skip + limit) if len(found) == limit else None
    return Json({"holders": to_json(found), "next": next_})


@router.post("/{id}/reset", summary="Return a limit to the numbers of the code", **returns(answers.LIMIT),
             **accepts(ReasonBody, required=False))  # fmt: skip
async def reset_limit(request: Request, id: LimitId, principal: Principal = Operator) -> Json:
    """Refused if the code declares no such limit: delete it instead."""
    services, body = services_of(request), await read_model(request, ReasonBody)
    await services.read(
        services.engine.reset_limit, id, reason=body.reason, by=principal.name, namespace=principal.namespace
    )
    return await _limit(request, id, principal)


@router.delete("/{id}", summary="Remove a limit", **returns(answers.LIMIT_REMOVED))
async def remove_limit(
    request: Request, id: LimitId, reason: ForEvent = None, principal: Principal = Operator
) -> Json:  # fmt: skip
    """Refused if the code of a kind declares the limit: set other numbers instead."""
    services = services_of(request)
    await services.read(
        services.engine.remove_limit, id, reason=reason, by=principal.name, namespace=principal.namespace
    )
    return Json({"id": id, "removed": True})


async def _limit(request: Request, limit_id: int, principal: Principal) -> Json:
    services = services_of(request)
    found: Any = await services.read(services.engine.limit, limit_id, namespace=principal.namespace)
    return Json(to_json(found))
