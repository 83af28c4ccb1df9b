"""Jobnik's errors: a message and a code."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from onetray.dialects.ajv import ajv_message
from onetray.domain.errors import OnetrayError
from onetray.http.json_answers import Json
from onetray.http.problems import INVALID

_CODES = {400: "VALIDATION_ERROR", 409: "TASK_STATUS_UPDATE_FAILED", 422: "VALIDATION_ERROR"}
"""Other errors have the code of the native API, in capitals."""


class JobnikRefusal(OnetrayError):
    """An error that only Jobnik has. `refusal` is its code."""

    code, status = "refused", 400


def illegal_status(entity: str, was: str, to: str) -> JobnikRefusal:
    message = f"Illegal status transition from {was} to {to}"
    return JobnikRefusal(message, refusal=f"ILLEGAL_{entity}_STATUS_TRANSITION")


def in_finite_state(entity: str, state: str) -> JobnikRefusal:
    return JobnikRefusal(f"The {entity.lower()} is in the finite state {state}", refusal=f"{entity}_IN_FINITE_STATE")


def jobnik_error(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """A problem document as Jobnik's error."""
    status, code = problem["status"], problem.get("refusal")
    if problem["code"] == "not_found":
        # The path says what was not found; a dequeue finds tasks.
        entity = next((name for name in ("/jobs", "/stages") if name in scope["path"]), "/tasks")
        code = "TASK_NOT_FOUND" if scope["path"].endswith("/dequeue") else f"{entity[1:-1].upper()}_NOT_FOUND"
    _, is_query, parameter = str(problem.get("field", "")).partition("query.")
    unknown = f"Unknown query parameter '{parameter}'" if is_query else problem["detail"]
    message = "; ".join(map(ajv_message, scope.get(INVALID, [])[:5])) or unknown
    body = {"message": message, "code": code or _CODES.get(status, problem["code"].upper())}
    return Json(body, 400 if status == 422 else status, headers)
