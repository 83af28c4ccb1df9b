"""Health checks and the version: the routes that need no token."""

from __future__ import annotations

from fastapi import APIRouter, Request

from onetray import __version__
from onetray.http.json_answers import Json
from onetray.http.services import services_of

router = APIRouter(tags=["server"])


@router.get("/healthz", summary="Check that the process responds")
async def healthz() -> Json:
    return Json({"status": "ok"})


@router.get("/readyz", summary="Check that the database responds, too")
async def readyz(request: Request) -> Json:
    await services_of(request).ready.answer()
    return Json({"status": "ok"})


@router.get("/api/v1/version", summary="Get the server's version")
async def version() -> Json:
    return Json({"version": __version__})
