"""Every API error as a problem document of RFC 9457: a code, the facts, the next step.

Owns what clients learn about an error. Stack traces, paths and database messages go to the log only, under a reference
that the response contains.
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
_INVALID_TOKEN = ', error="invalid_token"'
TITLES = {
    400: "Invalid request", 401: "Missing or invalid token", 403: "Forbidden", 404: "Not found",
    405: "Method not allowed", 408: "Request timeout", 409: "Conflict with the current state", 413: "Too large",
    415: "Unsupported media type", 429: "Too many requests", 500: "Internal error", 503: "Unavailable",
}  # fmt: skip
INVALID = "onetray.invalid"
"""Key in a request's scope: pydantic's errors, for dialects that word them differently."""
_HIDDEN_FACTS = frozenset({"type", "title", "status", "code", "detail", "given"})


def problem(status: int, code: str, detail: str, **facts: Any) -> dict[str, Any]:
    return {"type": TYPE + code, "title": TITLES.get(status, code), "status": status, "code": code,
            "detail": detail, **facts}  # fmt: skip


def of_error(error: OnetrayError) -> dict[str, Any]:
    """The problem document of a OnetrayError."""
    if isinstance(error, Unavailable) and (error.__cause__ or error.__context__ or "path" in error.facts):
        return _database_unavailable(error)
    if error.status >= 500 and not isinstance(error, Unavailable):
        return _internal_error(error)
    facts = {k: v for k, v in error.facts.items() if k not in _HIDDEN_FACTS}
    if isinstance(error, IllegalTransition) and "allowed" in facts:
        facts["actions"] = facts.pop("allowed")
    return problem(error.status, error.code, str(error), **facts)


def answer(body: dict[str, Any], headers: dict[str, str] | None = None, scope: Scope | None = None) -> Response:
    """The response to an error; under a dialect's paths, in the dialect's format."""
    if scope is not None and "app" in scope:
        path = scope["path"]
        # The longest prefix is the first one: see http/dialects.py.
        for prefix, shape in getattr(scope["app"].state, "shapes", {}).items():
            if path == prefix or path.startswith(f"{prefix}/"):
                shaped: Response = shape(body, scope, headers)
                return shaped
    return Json(body, status_code=body["status"], media_type=MEDIA_TYPE, headers=headers)


def headers_of(error: OnetrayError) -> dict[str, str]:
    """Headers for clients that only read the status."""
    if isinstance(error, Unauthorized):
        return {"www-authenticate": f'Bearer realm="onetray"{_INVALID_TOKEN if error.facts.get("given") else ""}'}
    retry_after_s = error.facts.get("retry_after_s", 1.0 if isinstance(error, Unavailable) else None)
    return {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}


def problem_answer(error: Exception, scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """The response to a request that a middleware rejects."""
    if not isinstance(error, OnetrayError):
        return answer(_internal_error(error), headers, scope)
    return answer(of_error(error), {**headers_of(error), **(headers or {})}, scope)


def request_id_of(scope: Scope) -> str:
    """The server's id of a request, the same in every place that shows it."""
    id_: str = scope.setdefault("onetray.request_id", str(uuid4()))
    return id_


def install(app: FastAPI) -> None:
    """Answer every error of requests that the router handles itself with a problem document."""

    async def on_error(request: Request, error: Exception) -> Response:
        return response_to(error, request)

    for kind in (OnetrayError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, on_error)


def response_to(error: Exception, request: Request) -> Response:
    """The response to a request that a route, or its validation, has ended with an error."""
    if isinstance(error, OnetrayError):
        return answer(of_error(error), headers_of(error), request.scope)
    if isinstance(error, RequestValidationError):
        return _invalid_request(error, request)
    if not isinstance(error, HTTPException):
        return answer(_internal_error(error), scope=request.scope)
    if error.status_code == 405:
        return _method_not_allowed(request)
    code = "no_such_route" if error.status_code == 404 else "refused"
    return answer(problem(error.status_code, code, str(error.detail)), dict(error.headers or {}), request.scope)


def _invalid_request(error: RequestValidationError, request: Request) -> Response:
    invalid = request.scope[INVALID] = error.errors()[:100]
    errors = [{"field": ".".join(map(str, e["loc"])), "message": e["msg"]} for e in invalid]
    summary = "; ".join(f"{e['field']}: {e['message']}" for e in errors[:5])
    code = "malformed_json" if any(e["type"] == "json_invalid" for e in invalid) else "invalid_input"
    return answer(problem(400, code, summary, errors=errors), scope=request.scope)


def _method_not_allowed(request: Request) -> Response:
    """Each method of a path is a route of its own, so the methods of all matching routes are listed."""
    matching = [r for r in iter_route_contexts(request.app.routes) if r.matches(request.scope)[0] is not Match.NONE]
    methods = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
    body = problem(405, "no_such_method", f"{request.method[:20]} is not allowed here: use {methods}")
    return answer(body, {"allow": methods}, request.scope)


def _database_unavailable(error: Unavailable) -> dict[str, Any]:
    """For an error whose message names hosts, files or users: the message goes to the log only."""
    reference = str(uuid4())
    logger.warning("the database is unavailable, reference %s: %s", reference, error)
    summary = (type(error).__doc__ or "").strip().splitlines()[0]
    return problem(error.status, error.code, f"{summary} See reference {reference} in the log.", reference=reference)


def _internal_error(error: Exception) -> dict[str, Any]:
    reference = str(uuid4())
    logger.error("a request failed, reference %s", reference, exc_info=error)
    return problem(500, "internal", f"internal error: see reference {reference} in the log", reference=reference)
