"""Jobs, single tasks and flows: submit them, find them."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow
from onetray.domain.listing import JobSummary
from onetray.domain.task import Task
from onetray.engine.api import EngineApi
from onetray.engine.list_api import JOB_STATES
from onetray.http import views
from onetray.http.auth.scopes import Principal, Reader, Submitter
from onetray.http.idempotency import free_key_if_unavailable, key_of
from onetray.http.json_answers import Json, to_json
from onetray.http.native_route import NativeRoute, gives, own_key, takes
from onetray.http.openapi import answers
from onetray.http.params import Cursor, Id, Kind, Limit, headers_of_request, place
from onetray.http.params import cursor as cursor_at
from onetray.http.schemas.base import Moment, read_model
from onetray.http.schemas.bodies import JOB, BatchBody, FlowBody, TaskBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], route_class=NativeRoute)

WALKS = 10
"""How many short reads one page is looked for with. When nearly nothing matches, it is short, or empty."""
BETWEEN = "="
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
    Query(min_length=1, description="Only what belongs to this.", json_schema_extra={LIMIT: "key_chars"}),
]
LabelPairs = Annotated[
    list[str],
    Query(max_length=MAX_FILTERS, description="Only with this label: `name=value`.",
          json_schema_extra={"items": {"type": "string", "pattern": "^[^=]+=.+$"}}),
]  # fmt: skip


@router.post("", summary="Submit a job", **gives(answers.PLACED, 201, also={200: answers.PLACED}),
             **takes(TaskBody, FlowBody))  # fmt: skip
@own_key
async def submit_job(request: Request, principal: Principal = Submitter) -> Json:
    """A single task; or a flow, when it has `stages`.

    With an `Idempotency-Key` the same job again is the same job: 200 and `repeated`. Another payload or queue under
    the same key is refused. The key is the job's `idempotency_key`: it lives as long as the policy of its kind says,
    and each kind has keys of its own.
    """
    body = await read_model(request, JOB)
    command = body.value(**_key(body, key_of(request)), **headers_of_request(request, principal))
    found = await services_of(request).call(command)
    at = {"Location": f"/api/v1/jobs/{found.id}"}
    return Json(views.placed_view(found), status_code=200 if found.repeated else 201, headers=at)


def _key(body: Any, key: str | None) -> dict[str, Any]:
    if key is None or body.idempotency_key == key:
        return {}
    if body.idempotency_key is not None:
        raise InvalidInput("Idempotency-Key and idempotency_key differ: give one", field="idempotency_key")
    return {"idempotency_key": key}


@router.post("/batch", summary="Submit many jobs", **gives(answers.SUBMITTED), **takes(BatchBody))
async def submit_jobs(request: Request, principal: Principal = Submitter) -> Json:
    """Each is answered in its place: one that is refused harms no other.

    Under an `Idempotency-Key` each job that has no `idempotency_key` of its own gets one made from it.
    """
    services, from_ = services_of(request), headers_of_request(request, principal)
    body = await read_model(request, BatchBody)
    commands = [job.value(**_made_key(job, key_of(request), n, principal), **from_) for n, job in enumerate(body.jobs)]
    verdicts = await services.run(commands)
    free_key_if_unavailable(request, verdicts)
    return Json({"verdicts": [views.verdict(v, views.placed_view) for v in verdicts]})


def _made_key(body: Any, key: str | None, n: int, principal: Principal) -> dict[str, Any]:
    """A key for a job of a batch: if its server dies after the commit, the batch is sent again and makes no second.

    The key of a batch is its caller's: with another token the same key makes other jobs.
    """
    if key is None or body.idempotency_key is not None:
        return {}
    whose = key if principal.token is None else f"{principal.token} {key}"
    return {"idempotency_key": f"{sha256(whose.encode()).hexdigest()}#{n}"}


@router.get("", summary="List jobs, newest first", **gives(answers.JOBS))
async def list_jobs(
    request: Request,
    state: States = [],  # noqa: B006
    kind: Kind = None,
    queue: Queue = None,
    correlation_id: Correlation = None,
    label: LabelPairs = [],  # noqa: B006
    since: Annotated[Moment | None, Query(description="Only what was submitted since.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
    principal: Principal = Reader,
) -> Json:
    """A page may be short, even empty, before the last one: go on until `next` is null."""
    services = services_of(request)
    wanted = {
        "namespace": principal.namespace, "states": state, "kind": kind, "queue": queue, "correlation_id": correlation_id,
        "labels": dict(_label(pair) for pair in label), "since": since or 0,
    }  # fmt: skip
    before = None if cursor is None else place("jobs", cursor)
    return await services.answer(_page, services.engine, wanted, before, limit)


def _label(pair: str) -> tuple[str, str]:
    name, between, value = pair.partition(BETWEEN)
    if not between or not name or not value:
        raise InvalidInput(f"label must be name=value, not {pair[:50]!r}", field="query.label")
    return name, value


def _page(engine: EngineApi, wanted: dict[str, Any], before: int | None, limit: int) -> dict[str, Any]:
    found: list[JobSummary] = []
    for _ in range(WALKS):
        page = engine.jobs(**wanted, before=before, limit=limit - len(found))
        found += page.jobs
        before = page.before
        if before is None or len(found) == limit:
            break
    return {"jobs": to_json(found), "next": None if before is None else cursor_at("jobs", before)}


@router.get("/{id}", summary="One job", **gives(answers.JOB))
async def get_job(request: Request, id: Id, principal: Principal = Reader) -> Json:
    """A task or a flow; `entity` says which. `actions` are the moves that it allows a user now."""
    services = services_of(request)
    return await services.answer(_job, services.engine, id, principal.namespace)


def _job(engine: EngineApi, id: str, namespace: str) -> dict[str, Any]:
    return views.job(job_of(engine, id, namespace))


def job_of(engine: EngineApi, id: str, namespace: str) -> Task | Flow:
    """The task or the flow of this id, with its JSON as it was stored."""
    try:
        return engine.task(id, namespace=namespace, raw=True)
    except NotFound:
        pass
    try:
        return engine.flow(id, namespace=namespace, raw=True)
    except NotFound:
        raise NotFound(f"there is no job {id}", job=id) from None
