"""The API's documentation: lifecycles, the OpenAPI descriptions, and an HTML page of the native one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, PlainTextResponse

from onetray.domain.diagram import as_dict, diagram
from onetray.domain.errors import NotFound
from onetray.domain.lifecycle import MACHINES
from onetray.domain.machine import Machine
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.dialects import Dialect
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, returns
from onetray.http.openapi.document import DESCRIPTION, DRAWING, LIFECYCLE, LIFECYCLES, describe_dialect, description_of
from onetray.http.openapi.page import rendered
from onetray.http.services import services_of

router = APIRouter(tags=["server"], route_class=NativeRoute)

Entity = Annotated[
    str, Path(description="`task`, `stage` or `flow`.", examples=["task"], json_schema_extra={"enum": list(MACHINES)})
]

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""The page needs no scripts and loads nothing."""


@router.get("/api/v1/lifecycle", summary="List the lifecycles", **returns(LIFECYCLES))
async def list_lifecycles(principal: Principal = Reader) -> Json:
    """All states and transitions of tasks, stages and flows, with the actors that may make each transition."""
    return Json({"lifecycles": [as_dict(machine) for machine in MACHINES.values()]})


@router.get("/api/v1/lifecycle/{entity}", summary="Get a lifecycle", **returns(LIFECYCLE))
async def get_lifecycle(entity: Entity, principal: Principal = Reader) -> Json:
    """Returns the table of states and transitions that the engine enforces."""
    return Json(as_dict(_machine(entity)))


@router.get("/api/v1/lifecycle/{entity}/mermaid", summary="Get a lifecycle as a Mermaid diagram", **returns(DRAWING),
            response_class=PlainTextResponse)  # fmt: skip
async def draw_lifecycle(entity: Entity, principal: Principal = Reader) -> PlainTextResponse:
    """Returns the source of a Mermaid state diagram."""
    return PlainTextResponse("\n".join(diagram(_machine(entity))) + "\n")


def _machine(entity: str) -> Machine:
    if entity not in MACHINES:
        raise NotFound(f"there is no lifecycle {entity[:50]!r}; there are: {', '.join(MACHINES)}", entity=entity[:50])
    return MACHINES[entity]


@router.get("/api/v1/openapi.json", summary="Get this OpenAPI description", **returns(DESCRIPTION))
async def get_openapi(request: Request, principal: Principal = Reader) -> Json:
    """Returns it as OpenAPI 3.1, with the limits of this server."""
    return Json(description_of(request.app))


@router.get("/api/v1/openapi/{dialect}.json", include_in_schema=False)
async def get_dialect_openapi(request: Request, dialect: str, principal: Principal = Reader) -> Json:
    dialects: dict[str, Dialect] = request.app.state.dialects
    if dialect not in dialects:
        served = ", ".join(dialects) or "none"
        raise NotFound(f"this server has no dialect {dialect[:50]!r}; it has: {served}", dialect=dialect[:50])
    return Json(describe_dialect(dialects[dialect], services_of(request).engine.config.limits))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request, principal: Principal = Reader) -> HTMLResponse:
    return HTMLResponse(rendered(description_of(request.app)), headers=PAGE_HEADERS)
