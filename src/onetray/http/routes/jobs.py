"""Jobs: single tasks and flows."""

from __future__ import annotations

from fastapi import APIRouter, Request

from onetray.engine import Engine
from onetray.errors import NotFound
from onetray.http.access import Principal, Reader
from onetray.http.desk import desk_of
from onetray.http.wire import Json, plain

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])


@router.get("/{id}", summary="One job")
async def get(request: Request, id: str, who: Principal = Reader) -> Json:
    desk = desk_of(request)
    return Json(plain(await desk.read(_job, desk.engine, id, who.namespace)))


def _job(engine: Engine, id: str, namespace: str) -> object:
    try:
        return engine.task(id, namespace=namespace)
    except NotFound:
        return engine.flow(id, namespace=namespace)
