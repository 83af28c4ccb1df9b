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
    id_and_state,
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
from onetray.http.schemas.sizes import MOST_UNKNOWN
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
    def _few(cls, body: Any) -> Any:
        """To tell of thousands of unknown fields, each by itself, stops the server for seconds."""
        if isinstance(body, dict) and len(body) > MOST_UNKNOWN:
            raise ValueError(f"{len(body):,} fields, and only action and inputs are known: leave the others out")
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
    who: Principal = Submitter,
) -> Json:
    services = services_of(request)
    command = c.Submit(
        kind=new.action, payload=new.inputs, namespace=who.namespace, max_attempts=1, actor_name=who.name,
        correlation_id=request_id_of(request.scope), labels=_labels(who),
    )  # fmt: skip
    if key is not None:
        await _under_key(services, command, key)
    receipt = await services.call(command)
    # A new job shows what its submitter has just sent. One that was there may be another's, and has gone on.
    job = await services.read(_job_for if receipt.repeated else _new, services.engine, receipt.id, who)
    return _answer(request.scope, {"job": job}, 202)


def _labels(who: Principal) -> dict[str, str]:
    return {USER_LABEL: who.name, **({} if who.token is None else {TOKEN_LABEL: who.token})}


async def _under_key(services: Services, command: c.Submit, key: str) -> None:
    """Let the key lead to one job for a day. The engine's own keys know one action each: this one is for all."""
    if not _UUID4.fullmatch(key.lower()):
        raise InvalidInput("Idempotency-Key must be a UUID of version 4", field="Idempotency-Key")
    command.idempotency_key = key.lower()
    # Before the key is taken: a body that is refused must not keep it.
    command.check(services.engine.config.limits)
    policy = await services.read(services.engine.policy_of, command.kind, namespace=command.namespace) or Policy()
    if policy.idempotency_ttl_s != DAY_S:
        command.policy = policy.with_(idempotency_ttl_s=DAY_S)
    body = orjson.dumps([command.kind, command.payload], option=orjson.OPT_SORT_KEYS)
    held = await services.read(
        services.unredacted.http_keys.reserve, f"so1 {command.namespace}", command.idempotency_key,
        route=f"POST {PREFIX}", body_hash=hashlib.sha256(body).hexdigest(), ttl_s=DAY_S,
    )  # fmt: skip
    if not held:
        raise KeyReused(f"the Idempotency-Key {key} was used with another body: use a new one")


@router.get("/{id}", summary="One job")
async def get(request: Request, id: str, who: Principal = Reader) -> Json:
    services = services_of(request)
    return _answer(request.scope, {"job": await services.read(_job_for, services.engine, id, who)})


def _job_for(engine: EngineApi, id_: str, who: Principal) -> dict[str, Any]:
    """A job as this caller may see it."""
    job = find_so1_job(engine, id_, who.namespace)
    if not who.has(READ):
        return id_and_state(job)
    for found in jobs_as_so1(engine, [job.key], who.namespace):
        return found
    raise NotFound(f"there is no job {id_}")


def _new(engine: EngineApi, id_: str, who: Principal) -> dict[str, Any]:
    return as_so1(as_submitted(engine.task(id_, namespace=who.namespace)), None)


@router.get("", summary="Jobs, newest first")
async def jobs(
    request: Request,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
    who: Principal = Reader,
) -> Json:
    services = services_of(request)
    found, before = await services.read(_page, services.engine, who.namespace, _before(cursor), limit)
    return _answer(request.scope, {"jobs": found, "nextCursor": None if before is None else f"j{before:x}"})


def _before(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not re.fullmatch(r"j[\da-f]{1,15}", cursor):
        raise InvalidInput("cursor must be the nextCursor of a previous page", field="cursor")
    return int(cursor[1:], 16)


def _page(engine: EngineApi, namespace: str, before: int | None, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    found: list[JobSummary] = []
    for _ in range(READS):
        page = engine.jobs(namespace=namespace, before=before, limit=limit - len(found))
        before = page.before
        found += page.jobs
        if len(found) == limit or before is None:
            break
    return jobs_as_so1(engine, [job.key for job in found], namespace, LIST_LINES), before


@router.post("/{id}/cancel", summary="Cancel a job: at once if it is pending, otherwise through its worker")
async def cancel(request: Request, id: str, who: Principal = Canceller) -> Json:
    services = services_of(request)
    job = await services.read(find_so1_job, services.engine, id, who.namespace)
    if not who.has(OPERATE) and not await services.read(_is_own, services.unredacted, job, who):
        raise Forbidden(
            f"the token {who.name!r} did not submit this job: it needs the scope {OPERATE} to cancel it",
            needs=[OPERATE],
        )
    try:
        await services.call(_cancelling(job, who))
    except IllegalTransition:
        state = so1_state(await services.read(find_so1_job, services.engine, id, who.namespace))
        raise IllegalTransition(f"the job is {state}: it cannot be cancelled any more", state=state) from None
    return _answer(request.scope, {"job": await services.read(_job_for, services.engine, id, who)})


def _is_own(engine: EngineApi, job: JobStatus, who: Principal) -> bool:
    """Whether this very token submitted the job. Labels are set at the submit and never change."""
    read = engine.flow if job.entity == FLOW.entity else engine.task
    return who.token is not None and read(job.id, namespace=who.namespace).labels.get(TOKEN_LABEL) == who.token


def _cancelling(job: JobStatus, who: Principal) -> c.Command:
    # One that lies with a worker and has not begun is pending: there is nobody to ask.
    hard = so1_state(job) == SO1_PENDING
    if job.entity == FLOW.entity:
        return CancelFlow(job.id, namespace=who.namespace, hard=hard, actor_name=who.name)
    return c.Cancel(task=job.id, namespace=who.namespace, hard=hard, actor_name=who.name)


@router.get(
    "/{id}/events",
    summary="Follow a job by server-sent events",
    response_class=EventStream,
    status_code=200,
    responses=ENDED,
)
async def events(
    request: Request, id: str, cursor: Cursor = None, last: LastEventId = None, who: Principal = Reader
) -> Response:
    services = services_of(request)
    text = last or cursor
    seen = None if text is None else so1_stream.Seen.of(text)
    job = await services.read(find_so1_job, services.engine, id, who.namespace)
    headers = {"X-Request-Id": request_id_of(request.scope)}
    if seen is not None and seen.state in TERMINAL:
        # The client has seen the end: 204 keeps browsers from reconnecting.
        return Response(status_code=204, headers=headers)
    return await streaming(services, who, so1_stream.frames(services, job, who.namespace, seen), headers=headers)
