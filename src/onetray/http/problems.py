"""Every error of the API as a problem of RFC 9457: our code, the facts, the next step.

Owns what clients are told. What they are not told (stack traces, paths, what a database says of itself) is logged
under a reference that they get.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope
from uuid_utils import uuid4

from onetray.domain.errors import IllegalTransition, OnetrayError, Unauthorized, Unavailable
from onetray.http.json_answers import Json

logger = logging.getLogger("onetray.http")

TYPE = "https://onetray.dev/problems/"
MEDIA_TYPE = "application/problem+json"
_BAD = ', error="invalid_token"'
TITLES = {
    400: "The request is wrong", 401: "No valid token", 403: "Not allowed", 404: "Not found", 405: "No such method",
    408: "Too slow", 409: "Refused as things stand", 413: "Too large", 415: "JSON only", 429: "Too many requests",
    500: "Something broke here", 503: "Not available now",
}  # fmt: skip
_NO_FACTS = frozenset({"type", "title", "status", "code", "detail", "given"})


def problem(status: int, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    return {"type": TYPE + code, "title": TITLES.get(status, code), "status": status, "code": code,
            "detail": detail, **facts}  # fmt: skip


def of_error(error: OnetrayError) -> dict[str, Any]:
    """The problem that an error of ours is."""
    if isinstance(error, Unavailable) and (error.__cause__ or error.__context__ or "path" in error.facts):
        return _away(error)
    if error.status >= 500 and not isinstance(error, Unavailable):
        return _broken(error)
    facts = {k: v for k, v in error.facts.items() if k not in _NO_FACTS}
    if isinstance(error, IllegalTransition) and "allowed" in facts:
        facts["actions"] = facts.pop("allowed")
    return problem(error.status, error.code, str(error), **facts)


def answer(body: dict[str, Any], headers: dict[str, str] | None = None, scope: Scope | None = None) -> Response:
    """A problem as an answer; under the paths of a dialect, in the dialect's shape."""
    if scope is not None and "app" in scope:
        path = scope["path"]
        for prefix, shape in getattr(scope["app"].state, "shapes", {}).items():
            if path == prefix or path.startswith(f"{prefix}/"):
                shaped: Response = shape(body, scope, headers)
                return shaped
    return Json(body, status_code=body["status"], media_type=MEDIA_TYPE, headers=headers)


def headers_of(error: OnetrayError) -> dict[str, str]:
    """What an error says to programs that know no more of it than its status."""
    if isinstance(error, Unauthorized):
        return {"www-authenticate": f'Bearer realm="onetray"{_BAD if error.facts.get("given") else ""}'}
    wait_s = error.facts.get("retry_after_s", 1.0 if isinstance(error, Unavailable) else None)
    return {} if wait_s is None else {"retry-after": str(max(1, math.ceil(wait_s)))}


def problem_answer(error: Exception, scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that is refused before any route: by the gate, by a limit."""
    if not isinstance(error, OnetrayError):
        return answer(_broken(error), headers, scope)
    return answer(of_error(error), {**headers_of(error), **(headers or {})}, scope)


def request_id_of(scope: Scope) -> str:
    """The id of a request, the server's own: the same wherever it is told."""
    id_: str = scope.setdefault("onetray.request_id", str(uuid4()))
    return id_


def install(app: FastAPI) -> None:
    """Have every error of the app answered as a problem."""

    @app.exception_handler(OnetrayError)
    async def ours(request: Request, error: OnetrayError) -> Response:
        return answer(of_error(error), headers_of(error), request.scope)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[:100]
        wrong = [{"field": ".".join(map(str, e["loc"])), "message": e["msg"]} for e in found]
        said = "; ".join(f"{w['field']}: {w['message']}" for w in wrong[:5])
        code = "malformed_json" if any(e["type"] == "json_invalid" for e in found) else "invalid_input"
        return answer(problem(400, code, said, errors=wrong), scope=request.scope)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return _no_such_method(request)
        code = "no_such_route" if error.status_code == 404 else "refused"
        body = problem(error.status_code, code, str(error.detail))
        return answer(body, dict(error.headers or {}), request.scope)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return answer(_broken(error), scope=request.scope)


def _no_such_method(request: Request) -> Response:
    """Each method of a path is a route of its own: all that fit the path are named."""
    fitting = [r for r in iter_route_contexts(request.app.routes) if r.matches(request.scope)[0] is not Match.NONE]
    methods = ", ".join(sorted({method for route in fitting for method in route.methods or ()}))
    body = problem(405, "no_such_method", f"there is no {request.method[:20]} here: use {methods}")
    return answer(body, {"allow": methods}, request.scope)


def _away(error: Unavailable) -> dict[str, Any]:
    """One whose words name hosts, files and users: they are for the log."""
    reference = str(uuid4())
    logger.warning("the database is away, reference %s: %s", reference, error)
    said = (type(error).__doc__ or "").strip().splitlines()[0]
    return problem(error.status, error.code, f"{said} The log knows it as {reference}.", reference=reference)


def _broken(error: Exception) -> dict[str, Any]:
    reference = str(uuid4())
    logger.error("a request broke, reference %s", reference, exc_info=error)
    return problem(500, "internal", f"something broke here; the log knows it as {reference}", reference=reference)
