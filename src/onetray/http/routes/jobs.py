"""Submit, list and read jobs: single tasks and flows."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow, Placed
from onetray.domain.flow_commands import SubmitFlow
from onetray.domain.task import Receipt, Task
from onetray.engine.api import EngineApi
from onetray.engine.list_api import JOB_STATES
from onetray.engine.list_scan import MAX_PAGE, MAX_TOTAL
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader, Submitter
from onetray.http.idempotency import free_key_if_unavailable, key_of, submit_key
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, Plan, accepts, can_be_short, own_key, returns
from onetray.http.openapi import answers
from onetray.http.params import At, Cursor, Id, Kind, Limit, PastTasks, cursor_at, cursor_position, headers_of_request
from onetray.http.schemas.base import Moment, read_model
from onetray.http.schemas.bodies import JOB, BatchBody, FlowBody, TaskBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import Services, services_of

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=NativeRoute)

READS = 10
"""Reads per page: if few jobs match, a page is short or empty."""
MAX_FILTERS = 20

States = Annotated[
    list[str],
    Query(
        max_length=MAX_FILTERS,
        description="Only jobs in one of these states.",
        json_schema_extra={"items": {"type": "string", "enum": list(JOB_STATES)}},
    ),
]
Queue = Annotated[
    str | None,
    Query(
        min_length=1, description="Only tasks of this queue. Flows have none.", json_schema_extra={LIMIT: "name_chars"}
    ),
]
Correlation = Annotated[
    str | None,
    Query(min_length=1, description="Only jobs with this correlation id.", json_schema_extra={LIMIT: "key_chars"}),
]
Text = Annotated[
    str | None,
    Query(min_length=1, description="Only jobs with this correlation id or alias, or whose id begins with this (at "
          "least 8 characters); if there is none, only those whose kind or flow name contains it.",
          json_schema_extra={LIMIT: "key_chars"}),
]  # fmt: skip
LabelPairs = Annotated[
    list[str],
    Query(max_length=MAX_FILTERS, description="Only jobs with this label, as `name=value`.",
          json_schema_extra={"items": {"type": "string", "pattern": "^[^=]+=.+$"}}),
]  # fmt: skip


def _plan_submit(request: Request, raw: bytes, principal: Principal) -> Plan | None:
    command, services = _submit_command(request, JOB.validate_json(raw), principal), services_of(request)
    if not all(services.knows(kind, principal.namespace) for kind in _kinds(command)):
        return None
    return Plan((command,), lambda verdicts: _submitted(verdicts[0].unwrap(), {}))


def _submit_command(request: Request, body: Any, principal: Principal) -> Submit | SubmitFlow:
    command: Submit | SubmitFlow = body.value(
        **submit_key(body, key_of(request)), **headers_of_request(request, principal)
    )
    return command


def _submitted(job: Receipt | Placed, warning: dict[str, str]) -> Json:
    headers = {"Location": f"/api/v1/jobs/{job.id}", **warning}
    return Json(views.placed_view(job), status_code=200 if job.repeated else 201, headers=headers)


@router.post("", summary="Submit a job", **returns(answers.ACCEPTED, 201, also={200: answers.ACCEPTED}),
             **accepts(TaskBody, FlowBody))  # fmt: skip
@own_key
@can_be_short(_plan_submit)
async def submit_job(request: Request, principal: Principal = Submitter) -> Json:
    """Submits a flow if the body has `stages`, otherwise a single task.

    The `Idempotency-Key` is the job's `idempotency_key`: a repeated submit returns the existing job with status 200 and
    `repeated`; one with another payload or queue is rejected. Keys are per kind, and the policy of the kind sets how
    long they live. A kind that nobody has declared is accepted, because its worker may come later: then the header
    `Onetray-Warning` names it.
    """
    command = _submit_command(request, await read_model(request, JOB), principal)
    warning = await _warning(services_of(request), [command], principal)
    return _submitted(await services_of(request).call(command), warning)


async def _warning(services: Services, commands: list[Submit | SubmitFlow], principal: Principal) -> dict[str, str]:
    """The header that names kinds that nobody knows; none if all are known."""
    unknown = await services.unknown_kinds((kind for c in commands for kind in _kinds(c)), principal.namespace)
    if not unknown:
        return {}
    # Names of kinds may be any text, a header is ASCII.
    names = ", ".join(ascii(kind[:100]) for kind in unknown)
    return {answers.WARNING: f"no worker has declared the kind {names}: the task waits until one does"}


def _kinds(command: Submit | SubmitFlow) -> Iterator[str]:
    if isinstance(command, Submit):
        yield command.kind
    else:
        yield from (task.kind for stage in command.stages for task in stage.tasks)


@router.post("/batch", summary="Submit many jobs", **returns(answers.SUBMITTED), **accepts(BatchBody))
async def submit_jobs(request: Request, principal: Principal = Submitter) -> Json:
    """Returns one verdict per job, in request order. A rejected job does not affect the others.

    With an `Idempotency-Key`, each job without an `idempotency_key` gets one that is derived from it.
    """
    services, headers = services_of(request), headers_of_request(request, principal)
    body = await read_model(request, BatchBody)
    keys = [_derived_key(job, key_of(request), n, principal) for n, job in enumerate(body.jobs)]
    commands = [job.value(**key, **headers) for job, key in zip(body.jobs, keys, strict=True)]
    warning = await _warning(services, commands, principal)
    verdicts = await services.run(commands)
    free_key_if_unavailable(request, verdicts)
    return Json({"verdicts": [views.verdict(v, views.placed_view) for v in verdicts]}, headers=warning)


def _derived_key(body: Any, key: str | None, n: int, principal: Principal) -> dict[str, Any]:
    """A job's key, derived from the batch's key, the token and the job's index.

    If the server dies after the commit, the repeated batch submits no job twice.
    """
    if key is None or body.idempotency_key is not None:
        return {}
    caller_key = key if principal.token is None else f"{principal.token} {key}"
    return {"idempotency_key": f"{sha256(caller_key.encode()).hexdigest()}#{n}"}


@router.get("", summary="List jobs, newest first", **returns(answers.JOBS))
async def list_jobs(
    request: Request,
    state: States = [],  # noqa: B006
    kind: Kind = None,
    queue: Queue = None,
    correlation_id: Correlation = None,
    label: LabelPairs = [],  # noqa: B006
    entity: Annotated[Literal["task", "flow"] | None, Query(description="Only single tasks, or only flows.")] = None,
    priority: Annotated[int | None, Query(ge=-(2**31) + 1, le=2**31 - 1, description="Only this priority.")] = None,
    since: Annotated[Moment | None, Query(description="Only jobs submitted at or after this time.")] = None,
    until: Annotated[Moment | None, Query(description="Only jobs submitted at or before this time.")] = None,
    text: Text = None,
    cursor: Cursor = None,
    page: Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="The number of a page, from 1.")] = None,
    limit: Limit = 100,
    total: Annotated[bool, Query(description=f"Count all jobs, up to {MAX_TOTAL:,}.")] = False,
    principal: Principal = Reader,
) -> Json:
    """A page may be short or empty although more follow: continue until `next` is null. A numbered page is filled.

    Numbered pages and totals read all jobs before them: limit them by `since`.
    """
    services = services_of(request)
    filters = {
        "namespace": principal.namespace, "states": state, "kind": kind, "queue": queue, "since": since or 0,
        "correlation_id": correlation_id, "labels": dict(_label(pair) for pair in label), "entity": entity,
        "priority": priority, "until": until, "text": text,
    }  # fmt: skip
    if cursor is not None and page is not None:
        raise InvalidInput("send cursor or page, not both", field="query.page")
    before = None if cursor is None else cursor_position("jobs", cursor)
    return await services.answer(_page, services.engine, filters, before, page, limit, total)


def _label(pair: str) -> tuple[str, str]:
    name, _, value = pair.partition("=")
    if not name or not value:
        raise InvalidInput(f"label must be name=value, not {pair[:50]!r}", field="query.label")
    return name, value


def _page(
    engine: EngineApi, filters: dict[str, Any], before: int | None, page: int | None, limit: int, total: bool
) -> dict[str, Any]:
    first = engine.jobs(**filters, before=before, page=page, limit=limit, total=total)
    jobs, before = list(first.jobs), first.before
    for _ in range(READS - 1):
        if before is None or len(jobs) == limit:
            break
        more = engine.jobs(**filters, before=before, limit=limit - len(jobs))
        jobs += more.jobs
        before = more.before
    next_ = None if before is None else cursor_at("jobs", before)
    return {"jobs": to_json(jobs), "next": next_, "total": first.total}


@router.get("/{id}", summary="Get a job", **returns(answers.JOB))
async def get_job(
    request: Request, id: Id, at: At = None, tasks: PastTasks = 100, principal: Principal = Reader
) -> Json:
    """Returns a task or a flow: see `entity`. `actions` lists what a user may do with it now.

    With `at`, as it was right after one of its events, rebuilt from the log. `past` then has the stages and the first
    `tasks` tasks of a flow, and lists the fields that the log does not tell as `unknown`.
    """
    services = services_of(request)
    if at is not None:
        return await services.answer(_job_at, services.engine, id, principal.namespace, at, tasks)
    return await services.answer(_job, services.engine, id, principal.namespace)


def _job_at(engine: EngineApi, id: str, namespace: str, at: int, tasks: int) -> dict[str, Any]:
    return views.past_job(engine.at(id, at, tasks=tasks, namespace=namespace))


def _job(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    return views.job(job_of(engine, id, namespace))


def job_of(engine: EngineApi, id: str, namespace: str) -> Task | Flow:
    """The task or flow with this id, with its JSON unparsed."""
    try:
        return engine.task(id, namespace=namespace, raw=True)
    except NotFound:
        pass
    try:
        return engine.flow(id, namespace=namespace, raw=True)
    except NotFound:
        raise NotFound(f"there is no job {id}", job=id) from None
