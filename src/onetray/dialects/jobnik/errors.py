"""Jobnik's errors: a message and a code."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from onetray.dialects.ajv import ajv_message
from onetray.dialects.jobnik.values import STAGE_STATES
from onetray.domain.errors import OnetrayError
from onetray.domain.lifecycle import FLOW, STAGE
from onetray.http.json_answers import Json
from onetray.http.problems import INVALID

_CODES = {400: "VALIDATION_ERROR", 409: "TASK_STATUS_UPDATE_FAILED", 422: "VALIDATION_ERROR"}
"""Other errors have the code of the native API, in capitals."""


class Refused(OnetrayError):
    """An error that only Jobnik has. `refusal` is its code."""

    code, status = "refused", 400


def illegal(entity: str, was: str, to: str) -> Refused:
    return Refused(f"Illegal status transition from {was} to {to}", refusal=f"ILLEGAL_{entity}_STATUS_TRANSITION")


def finite(entity: str, state: str) -> Refused:
    return Refused(f"The {entity.lower()} is in the finite state {state}", refusal=f"{entity}_IN_FINITE_STATE")


def takes_no_tasks(native_state: str) -> Refused:
    if native_state in STAGE.terminal | FLOW.terminal:
        return finite("STAGE", STAGE_STATES[native_state])
    code = "NOT_ALLOWED_TO_ADD_TASKS_TO_IN_PROGRESS_STAGE"
    return Refused("Tasks cannot be added to a stage that is IN_PROGRESS", refusal=code)


def shape(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """A problem document as Jobnik's error."""
    status, code = problem["status"], problem.get("refusal")
    if problem["code"] == "not_found":
        # The first part of the path says what was not found; a dequeue finds tasks.
        entity = "TASK" if scope["path"].endswith("/dequeue") else scope["path"].split("/")[2][:-1].upper()
        code = f"{entity}_NOT_FOUND"
    field = str(problem.get("field", ""))
    if field.startswith("query."):
        message = f"Unknown query parameter '{field.removeprefix('query.')}'"
    else:
        message = "; ".join(map(ajv_message, scope.get(INVALID, [])[:5])) or problem["detail"]
    body = {"message": message, "code": code or _CODES.get(status, problem["code"].upper())}
    return Json(body, 400 if status == 422 else status, headers)
