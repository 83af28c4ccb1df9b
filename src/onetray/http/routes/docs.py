"""What the API says about itself: the lifecycles, OpenAPI, and a page to read it on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import HTMLResponse, PlainTextResponse

from onetray.domain.diagram import as_dict, diagram
from onetray.domain.errors import NotFound
from onetray.domain.lifecycle import MACHINES
from onetray.domain.machine import Machine
from onetray.http.auth.scopes import Principal, Reader
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, gives
from onetray.http.openapi.document import DESCRIPTION, DRAWING, LIFECYCLE, LIFECYCLES, description_of
from onetray.http.openapi.page import rendered

router = APIRouter(tags=["server"], route_class=NativeRoute)

Entity = Annotated[
    str, Path(description="`task`, `stage` or `flow`.", examples=["task"], json_schema_extra={"enum": list(MACHINES)})
]

GUARDED = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
"""The page runs nothing and fetches nothing."""


@router.get("/api/v1/lifecycle", summary="The lifecycles", **gives(LIFECYCLES))
async def list_lifecycles(principal: Principal = Reader) -> Json:
    """Every state and every transition of tasks, stages and flows, and who may make it."""
    return Json({"lifecycles": [as_dict(machine) for machine in MACHINES.values()]})


@router.get("/api/v1/lifecycle/{entity}", summary="One lifecycle", **gives(LIFECYCLE))
async def get_lifecycle(entity: Entity, principal: Principal = Reader) -> Json:
    """The table that the engine itself goes by."""
    return Json(as_dict(_machine(entity)))


@router.get("/api/v1/lifecycle/{entity}/mermaid", summary="One lifecycle as a Mermaid diagram", **gives(DRAWING),
            response_class=PlainTextResponse)  # fmt: skip
async def draw_lifecycle(entity: Entity, principal: Principal = Reader) -> PlainTextResponse:
    """As text: Mermaid draws it."""
    return PlainTextResponse("\n".join(diagram(_machine(entity))) + "\n")


def _machine(entity: str) -> Machine:
    if entity not in MACHINES:
        raise NotFound(f"there is no lifecycle {entity[:50]!r}; there are: {', '.join(MACHINES)}", entity=entity[:50])
    return MACHINES[entity]


@router.get("/api/v1/openapi.json", summary="This description", **gives(DESCRIPTION))
async def get_openapi(request: Request, principal: Principal = Reader) -> Json:
    """OpenAPI 3.1."""
    return Json(description_of(request.app))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request, principal: Principal = Reader) -> HTMLResponse:
    return HTMLResponse(rendered(description_of(request.app)), headers=GUARDED)
