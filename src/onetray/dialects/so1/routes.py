"""so1's routes and errors. Each route declares its scope and its answer."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Scope

from onetray.dialects import kit
from onetray.dialects.kit import Json, Principal, Reader, Services, Submitter, services_of
from onetray.dialects.so1 import job as so1
from onetray.domain.commands import Submit
from onetray.domain.errors import Forbidden, IllegalTransition, InvalidInput, NotFound
from onetray.domain.task import Verdict
from onetray.domain.token import OPERATE, READ, SUBMIT
from onetray.engine.api import EngineApi

PREFIX = "/api/jobs"
DAY_S = 86_400.0
LIST_LINES = 20
"""Log lines of each job in a list."""

CODES = {
    400: "VALIDATION_ERROR", 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND", 409: "CONFLICT",
    413: "VALIDATION_ERROR", 429: "SERVICE_UNAVAILABLE", 503: "SERVICE_UNAVAILABLE",
}  # fmt: skip
"""Other errors are a BAD_REQUEST, or an INTERNAL_SERVER_ERROR."""
BAD_REQUESTS = frozenset({"malformed_json", "too_deep"})
"""Errors with status 400 that are not about a field."""
_UUID4 = re.compile(r"[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}")
_SHOWN_DETAILS = ("field", "errors", "limit", "needs", "state")
_FIELDS = {"kind": "action", "payload": "inputs"}
"""so1's names of engine fields that appear in errors."""

_JOB, _JOBS = {"requestId": "7f", "job": so1.EXAMPLE}, {"requestId": "7f", "jobs": [so1.EXAMPLE], "nextCursor": None}
JOB, ACCEPTED = (kit.answers_with("The job", _JOB, status, so1.OPTIONAL) for status in (200, 202))
JOBS = kit.answers_with("Jobs, newest first", _JOBS, 200, so1.OPTIONAL)

router = APIRouter(prefix=PREFIX, tags=["so1"], route_class=kit.DialectRoute)
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=36)]
Canceller = Depends(kit.allow(SUBMIT, OPERATE))
PageSize = Annotated[int, Query(ge=1, le=50)]


class So1Submit(kit.ClosedBody):
    """An action and its inputs."""

    action: str = Field(min_length=1, max_length=200, examples=["trigger-github-workflow"])
    inputs: dict[str, Any] = Field(default_factory=dict, examples=[{"repo": "acme/site"}])


def shape(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """An error in so1's format."""
    problem, status = kit.renamed(problem, _FIELDS), problem["status"]
    code = CODES.get(status, "INTERNAL_SERVER_ERROR" if status >= 500 else "BAD_REQUEST")
    details = {name: problem[name] for name in _SHOWN_DETAILS if name in problem}
    error = {
        "code": "BAD_REQUEST" if problem["code"] in BAD_REQUESTS else code,
        "message": str(problem["detail"]),
        **({"details": details} if details else {}),
    }
    return _answer(scope, {"error": error}, status, headers)


def _answer(scope: Scope, body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Json:
    id_ = kit.request_id_of(scope)
    return Json({"requestId": id_, **body}, status_code=status, headers={**(headers or {}), "X-Request-Id": id_})


@router.post("", summary="Submit a job", **ACCEPTED)
async def submit(request: Request, new: So1Submit, key: Key = None, principal: Principal = Submitter) -> Json:
    services, ns = services_of(request), principal.namespace
    token = {} if principal.token is None else {so1.TOKEN_LABEL: principal.token}
    command = Submit(
        kind=new.action, payload=new.inputs, namespace=ns, max_attempts=1, actor_name=principal.name,
        correlation_id=kit.request_id_of(request.scope), labels={so1.USER_LABEL: principal.name, **token},
        tells_written=True,
    )  # fmt: skip
    if key is not None:
        _bind_key(services, command, key)
    verdict, job = await services.call_by(_submit_all, command)
    receipt = verdict.unwrap()
    # A new job only repeats the caller's input. An existing one may be another caller's, and may have progressed.
    if receipt.repeated:
        return await _show(request, receipt.id, principal, 202)
    if job is None:
        raise NotFound(f"there is no job {receipt.id}")
    return _answer(request.scope, {"job": job}, 202)


def _submit_all(services: Services, commands: list[Submit]) -> list[tuple[Verdict, dict[str, Any] | None]]:
    """Submit the jobs of several requests in one transaction. Returns each verdict, with the job if it is new."""
    verdicts = services.engine.run(commands)
    new: list[dict[str, Any] | None] = [None] * len(commands)
    redacted: dict[str, dict[str, int]] = {}
    for i, (command, verdict) in enumerate(zip(commands, verdicts, strict=True)):
        written = verdict.value.written if verdict.error is None else None
        if written is not None and written.policy.redact:
            redacted.setdefault(command.namespace, {})[verdict.value.id] = i
        elif written is not None:
            new[i] = so1.submitted_as_so1(command, verdict.value, written)
    for namespace, places in redacted.items():
        for task in services.engine.tasks_by_id(list(places), namespace=namespace):
            new[places[task.id]] = so1.new_job_as_so1(task)
    return list(zip(verdicts, new, strict=True))


def _bind_key(services: Services, command: Submit, key: str) -> None:
    """Bind the key to one job for a day. The engine's keys are per kind; so1's cover all actions."""
    if not _UUID4.fullmatch(key.lower()):
        raise InvalidInput("Idempotency-Key must be a UUID of version 4", field="Idempotency-Key")
    command.idempotency_key = key.lower()
    # An invalid body is refused before it is hashed.
    command.check(services.engine.config.limits)
    body = [command.kind, command.payload]
    command.reserves = kit.reserved_key("so1", command.namespace, key.lower(), body, f"POST {PREFIX}", DAY_S)


@router.get("/{id}", summary="Get a job", **JOB)
async def get(request: Request, id: str, principal: Principal = Reader) -> Json:
    return await _show(request, id, principal)


async def _show(request: Request, id_: str, principal: Principal, status: int = 200) -> Json:
    services = services_of(request)
    return _answer(request.scope, {"job": await services.read(_job_for, services.engine, id_, principal)}, status)


def _job_for(engine: EngineApi, id_: str, principal: Principal) -> dict[str, Any]:
    """The job, or only its id and state if the token lacks the scope `read`."""
    job = kit.find_job(engine, id_, principal.namespace)
    if not principal.has(READ):
        return {"id": job.id, "state": so1.so1_state(job)}
    for details in so1.jobs_as_so1(engine, [job.key], principal.namespace):
        return details
    raise NotFound(f"there is no job {id_}")


@router.get("", summary="List jobs, newest first", **JOBS)
async def jobs(
    request: Request, cursor: kit.Cursor = None, limit: PageSize = 20, principal: Principal = Reader
) -> Json:
    services, ns = services_of(request), principal.namespace
    if cursor is not None and not re.fullmatch(r"j[\da-f]{1,15}", cursor):
        raise InvalidInput("cursor must be the nextCursor of a previous page", field="cursor")
    before = None if cursor is None else int(cursor[1:], 16)
    found, before = await services.read(kit.walk_jobs, services.engine, ns, before, limit)
    page = await services.read(so1.jobs_as_so1, services.engine, [job.key for job in found], ns, LIST_LINES)
    return _answer(request.scope, {"jobs": page, "nextCursor": None if before is None else f"j{before:x}"})


@router.post("/{id}/cancel", summary="Cancel a job: at once if it is pending, otherwise through its worker", **JOB)
async def cancel(request: Request, id: str, principal: Principal = Canceller) -> Json:
    services, ns = services_of(request), principal.namespace
    job = await services.read(kit.find_job, services.engine, id, ns)
    if not principal.has(OPERATE):
        labels = await services.read(kit.labels_of, services, job, ns)
        if principal.token is None or labels.get(so1.TOKEN_LABEL) != principal.token:
            raise Forbidden(
                f"the token {principal.name!r} did not submit this job: it needs the scope {OPERATE} to cancel it",
                needs=[OPERATE],
            )
    # No handler of a pending job runs yet, even if a worker has claimed it: none has to stop first.
    hard = so1.so1_state(job) == so1.PENDING
    try:
        await services.call(kit.cancel_command(job, hard=hard, namespace=ns, actor_name=principal.name))
    except IllegalTransition:
        state = so1.so1_state(await services.read(kit.find_job, services.engine, id, ns))
        raise IllegalTransition(f"the job is {state}: it can no longer be cancelled", state=state) from None
    return await _show(request, id, principal)


@router.get("/{id}/events", summary="Follow a job by server-sent events", **kit.JOB_STREAM)
async def events(
    request: Request, id: str, cursor: kit.Cursor = None, last: kit.LastEventId = None, principal: Principal = Reader
) -> Response:
    services, text = services_of(request), last or cursor
    seen = None if text is None else so1.Seen.of(text)
    job = await services.read(kit.find_job, services.engine, id, principal.namespace)
    headers = {"X-Request-Id": kit.request_id_of(request.scope)}
    if seen is not None and seen.state in so1.TERMINAL:
        # The client has seen the end: 204 keeps browsers from reconnecting.
        return Response(status_code=204, headers=headers)
    read = partial(so1.read_so1_changes, services.engine, job.id, principal.namespace)
    return await kit.streaming(services, principal, kit.follow(services, job, read, seen), headers=headers)


DIALECT = kit.Dialect(
    "so1", PREFIX, router, shape, title="so1's job API", states=so1.TABLES,
    description="Jobs with five states, idempotent submits, and a stream of states and log lines.",
)  # fmt: skip
