"""so1: jobs at /api/jobs, with so1's states and errors. See docs/so1.md.

Owns the dialect's routes and errors. The engine decides what is allowed; so1_job.py maps values, so1_stream.py streams
them.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response
from starlette.types import Scope

from onetray.dialects import so1_stream
from onetray.dialects.so1_job import (
    SO1_PENDING,
    TERMINAL,
    TOKEN_LABEL,
    USER_LABEL,
    as_so1,
    as_submitted,
    find_so1_job,
    jobs_as_so1,
    so1_state,
)
from onetray.domain import commands as c
from onetray.domain.errors import Forbidden, IllegalTransition, InvalidInput, KeyReused, NotFound
from onetray.domain.flow_commands import CancelFlow
from onetray.domain.lifecycle import FLOW
from onetray.domain.listing import JobStatus, JobSummary
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SUBMIT
from onetray.engine.api import EngineApi
from onetray.http.auth.scopes import Principal, Reader, Submitter, allow
from onetray.http.json_answers import Json
from onetray.http.problems import request_id_of
from onetray.http.routes.streams import ENDED, streaming
from onetray.http.schemas.sizes import MAX_UNKNOWN
from onetray.http.services import Services, services_of
from onetray.http.streams.sse import EventStream

PREFIX = "/api/jobs"
DAY_S = 86_400.0
LIST_LINES = 20
"""Log lines of each job in a list."""
READS = 20
"""Reads per page of the list: most jobs of the database may belong to other namespaces."""

CODES = {
    400: "VALIDATION_ERROR", 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "BAD_REQUEST",
    408: "BAD_REQUEST", 409: "CONFLICT", 413: "VALIDATION_ERROR", 415: "BAD_REQUEST", 422: "VALIDATION_ERROR",
    429: "SERVICE_UNAVAILABLE", 500: "INTERNAL_SERVER_ERROR", 503: "SERVICE_UNAVAILABLE",
}  # fmt: skip
BAD_REQUESTS = frozenset({"malformed_json", "too_deep"})
"""Errors with status 400 that are not about a field."""
_UUID4 = re.compile(r"[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}")
_SHOWN_DETAILS = ("field", "errors", "limit", "needs", "state")
_FIELDS = {"kind": "action", "payload": "inputs"}
"""so1's names of engine fields that appear in errors."""

router = APIRouter(prefix=PREFIX, tags=["so1"])
Canceller = Depends(allow(SUBMIT, OPERATE))
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
Cursor = Annotated[str | None, Query(max_length=80)]


class NewJob(BaseModel):
    """The body of a submit: an action and its inputs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    action: str = Field(min_length=1, max_length=200, examples=["trigger-github-workflow"])
    inputs: dict[str, Any] = Field(default_factory=dict, examples=[{"repo": "acme/site"}])

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, body: Any) -> Any:
        """Rejects thousands of unknown fields at once: one error for each would block the server for seconds."""
        if isinstance(body, dict) and len(body) > MAX_UNKNOWN:
            raise ValueError(f"the body has {len(body):,} fields: send only action and inputs")
        return body


def shape(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """An error in so1's format."""
    code = CODES.get(problem["status"], "INTERNAL_SERVER_ERROR" if problem["status"] >= 500 else "BAD_REQUEST")
    if problem["code"] in BAD_REQUESTS:
        code = "BAD_REQUEST"
    details = {name: problem[name] for name in _SHOWN_DETAILS if name in problem}
    message, field = str(problem["detail"]), problem.get("field")
    if field in _FIELDS:
        message, details["field"] = message.replace(field, _FIELDS[field], 1), _FIELDS[field]
    error = {"code": code, "message": message, **({"details": details} if details else {})}
    status = 400 if problem["status"] == 422 else problem["status"]
    return _answer(scope, {"error": error}, status, headers)


def _answer(scope: Scope, body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Json:
    id_ = request_id_of(scope)
    return Json({"requestId": id_, **body}, status_code=status, headers={**(headers or {}), "X-Request-Id": id_})


@router.post("", status_code=202, summary="Submit a job")
async def submit(
    request: Request,
    new: NewJob,
    key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=36)] = None,
    principal: Principal = Submitter,
) -> Json:
    services = services_of(request)
    command = c.Submit(
        kind=new.action, payload=new.inputs, namespace=principal.namespace, max_attempts=1, actor_name=principal.name,
        correlation_id=request_id_of(request.scope), labels=_labels(principal),
    )  # fmt: skip
    if key is not None:
        await _reserve_key(services, command, key)
    receipt = await services.call(command)
    # A new job only repeats the caller's input. An existing one may be another caller's, and may have progressed.
    read = _job_for if receipt.repeated else _new_job
    job = await services.read(read, services.engine, receipt.id, principal)
    return _answer(request.scope, {"job": job}, 202)


def _labels(principal: Principal) -> dict[str, str]:
    return {USER_LABEL: principal.name, **({} if principal.token is None else {TOKEN_LABEL: principal.token})}


async def _reserve_key(services: Services, command: c.Submit, key: str) -> None:
    """Bind the key to one job for a day. The engine's keys are per kind; so1's cover all actions."""
    if not _UUID4.fullmatch(key.lower()):
        raise InvalidInput("Idempotency-Key must be a UUID of version 4", field="Idempotency-Key")
    command.idempotency_key = key.lower()
    # Before the reservation: an invalid body must not use up the key.
    command.check(services.engine.config.limits)
    policy = await services.read(services.engine.policy_of, command.kind, namespace=command.namespace) or Policy()
    if policy.idempotency_ttl_s != DAY_S:
        command.policy = policy.with_(idempotency_ttl_s=DAY_S)
    body = orjson.dumps([command.kind, command.payload], option=orjson.OPT_SORT_KEYS)
    reserved = await services.read(
        services.unredacted.http_keys.reserve, f"so1 {command.namespace}", command.idempotency_key,
        route=f"POST {PREFIX}", body_hash=hashlib.sha256(body).hexdigest(), ttl_s=DAY_S,
    )  # fmt: skip
    if not reserved:
        raise KeyReused(f"the Idempotency-Key {key} was used with another body: use a new one")


@router.get("/{id}", summary="Get a job")
async def get(request: Request, id: str, principal: Principal = Reader) -> Json:
    services = services_of(request)
    return _answer(request.scope, {"job": await services.read(_job_for, services.engine, id, principal)})


def _job_for(engine: EngineApi, id_: str, principal: Principal) -> dict[str, Any]:
    """The job, or only its id and state if the token lacks the scope `read`."""
    job = find_so1_job(engine, id_, principal.namespace)
    if not principal.has(READ):
        return {"id": job.id, "state": so1_state(job)}
    for details in jobs_as_so1(engine, [job.key], principal.namespace):
        return details
    raise NotFound(f"there is no job {id_}")


def _new_job(engine: EngineApi, id_: str, principal: Principal) -> dict[str, Any]:
    return as_so1(as_submitted(engine.task(id_, namespace=principal.namespace)), None)


@router.get("", summary="List jobs, newest first")
async def jobs(
    request: Request,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
    principal: Principal = Reader,
) -> Json:
    services = services_of(request)
    page, before = await services.read(_page, services.engine, principal.namespace, _parse_cursor(cursor), limit)
    return _answer(request.scope, {"jobs": page, "nextCursor": None if before is None else f"j{before:x}"})


def _parse_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not re.fullmatch(r"j[\da-f]{1,15}", cursor):
        raise InvalidInput("cursor must be the nextCursor of a previous page", field="cursor")
    return int(cursor[1:], 16)


def _page(engine: EngineApi, namespace: str, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    jobs: list[JobSummary] = []
    for _ in range(READS):
        page = engine.jobs(namespace=namespace, before=before, limit=limit - len(jobs))
        before = page.before
        jobs += page.jobs
        if len(jobs) == limit or before is None:
            break
    return jobs_as_so1(engine, [job.key for job in jobs], namespace, LIST_LINES), before


@router.post("/{id}/cancel", summary="Cancel a job: at once if it is pending, otherwise through its worker")
async def cancel(request: Request, id: str, principal: Principal = Canceller) -> Json:
    services = services_of(request)
    job = await services.read(find_so1_job, services.engine, id, principal.namespace)
    if not principal.has(OPERATE) and not await services.read(_is_own, services.unredacted, job, principal):
        raise Forbidden(
            f"the token {principal.name!r} did not submit this job: it needs the scope {OPERATE} to cancel it",
            needs=[OPERATE],
        )
    try:
        await services.call(_cancel_command(job, principal))
    except IllegalTransition:
        state = so1_state(await services.read(find_so1_job, services.engine, id, principal.namespace))
        raise IllegalTransition(f"the job is {state}: it can no longer be cancelled", state=state) from None
    return _answer(request.scope, {"job": await services.read(_job_for, services.engine, id, principal)})


def _is_own(engine: EngineApi, job: JobStatus, principal: Principal) -> bool:
    """Whether this token submitted the job. Labels never change after the submit."""
    read = engine.flow if job.entity == FLOW.entity else engine.task
    labels = read(job.id, namespace=principal.namespace).labels
    return principal.token is not None and labels.get(TOKEN_LABEL) == principal.token


def _cancel_command(job: JobStatus, principal: Principal) -> c.Command:
    # No handler of a pending job runs yet, even if a worker has claimed it: none has to stop first.
    hard = so1_state(job) == SO1_PENDING
    if job.entity == FLOW.entity:
        return CancelFlow(job.id, namespace=principal.namespace, hard=hard, actor_name=principal.name)
    return c.Cancel(task=job.id, namespace=principal.namespace, hard=hard, actor_name=principal.name)


@router.get(
    "/{id}/events",
    summary="Follow a job by server-sent events",
    response_class=EventStream,
    status_code=200,
    responses=ENDED,
)
async def events(
    request: Request, id: str, cursor: Cursor = None, last: LastEventId = None, principal: Principal = Reader
) -> Response:
    services = services_of(request)
    text = last or cursor
    seen = None if text is None else so1_stream.Seen.of(text)
    job = await services.read(find_so1_job, services.engine, id, principal.namespace)
    headers = {"X-Request-Id": request_id_of(request.scope)}
    if seen is not None and seen.state in TERMINAL:
        # The client has seen the end: 204 keeps browsers from reconnecting.
        return Response(status_code=204, headers=headers)
    frames = so1_stream.frames(services, job, principal.namespace, seen)
    return await streaming(services, principal, frames, headers=headers)
