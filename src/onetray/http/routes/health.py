"""The start page, health checks and the version: the routes that need no token."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from onetray import __version__
from onetray.http.json_answers import Json
from onetray.http.services import services_of

router = APIRouter(tags=["server"])

_PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>onetray</title>
<h1>onetray {__version__}</h1>
<p>A durable job engine. <a href="/docs">The API</a>, <a href="/readyz">its health</a>.</p>
</html>
"""


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def home() -> HTMLResponse:
    return HTMLResponse(_PAGE)


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
