"""The pipeline's routes and errors. Each route declares its scope and its answer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Scope

from onetray.dialects import kit
from onetray.dialects.kit import Json, Operator, Principal, Reader, Submitter, services_of
from onetray.dialects.pipeline import job as pipeline
from onetray.dialects.pipeline.stream import PipelineView
from onetray.domain.errors import IllegalTransition
from onetray.domain.flow_commands import SubmitDeclared
from onetray.domain.listing import JobStatus

PREFIX = "/v1/pipeline/jobs"
Status = Literal["PENDING", "RUNNING", "COMPLETED", "PARTIAL", "FAILED", "CANCELLED"]
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
_FIELDS = {"name": "pipeline", "flow": "pipeline"}
"""The pipeline's names of engine fields that appear in errors."""
_SHOWN = ("field", "errors", "limit", "needs")

_ID = "019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70"
_NEW = {"job_id": _ID, "trace_id": "7f", "status": "PENDING", "status_url": f"{PREFIX}/{_ID}",
        "stream_url": f"{PREFIX}/{_ID}/stream"}  # fmt: skip
_LISTED = {
    "job_id": _ID, "pipeline": "news", "trace_id": "7f", "status": "RUNNING", "current_stage": None,
    "created_at": "2026-11-16T09:30:00.000000Z", "started_at": None, "finished_at": None, "cancel_requested": False,
}  # fmt: skip
_JOB = {
    **_LISTED, "config": None, "percentage": 40, "stage_progress": None, "error_count": 1,
    "errors": [{"stage": None, "task": None, "message": "no such feed"}],
}  # fmt: skip
NEW = kit.answers_with("The new job", _NEW, 202)
JOB = kit.answers_with("The job", _JOB)
JOBS = kit.answers_with("Jobs, newest first", {"jobs": [_LISTED], "total": 1, "running_count": 1})
CANCEL = kit.answers_with("Whether it is cancelled", {"cancelled": True, "message": "the job is CANCELLED"})

router = APIRouter(prefix=PREFIX, tags=["pipeline"], route_class=kit.DialectRoute)


class NewPipelineJob(kit.ClosedBody):
    """The name of a declared flow, and its config."""

    pipeline: str = Field(min_length=1, max_length=200, examples=["news"])
    config: dict[str, Any] = Field(default_factory=dict, examples=[{"enable_evaluation": True}])


def pipeline_error(problem: dict[str, Any], scope: Scope, headers: dict[str, str] | None = None) -> Response:
    """An error: `detail` is for people, `code` for programs; `job_id` is the open job of a singleton."""
    problem = kit.renamed(problem, _FIELDS)
    shown = {name: problem[name] for name in _SHOWN if name in problem}
    if problem["code"] == "already_open":
        shown["job_id"] = problem["job"]
    body = {"detail": problem["detail"], "code": problem["code"], **shown}
    return Json(body, status_code=problem["status"], headers=headers)


@router.post("", summary="Start a pipeline", **NEW)
async def start(request: Request, new: NewPipelineJob, key: Key = None, principal: Principal = Submitter) -> Json:
    """409 while another job of a pipeline that is a singleton is open: `job_id` names it."""
    command = SubmitDeclared(
        name=new.pipeline, config=new.config, correlation_id=kit.request_id_of(request.scope), idempotency_key=key,
        **kit.headers_of_request(request, principal),
    )  # fmt: skip
    services = services_of(request)
    placed = await services.call(command)
    job = pipeline.summary(await services.read(services.engine.flow, placed.id, namespace=principal.namespace))
    url = f"{PREFIX}/{placed.id}"
    body = {name: job[name] for name in ("job_id", "trace_id", "status")}
    return Json({**body, "status_url": url, "stream_url": f"{url}/stream"}, status_code=202, headers={"Location": url})


@router.get("", summary="List the newest jobs", **JOBS)
async def jobs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
    status: Annotated[Status | None, Query()] = None,
    principal: Principal = Reader,
) -> Json:
    services = services_of(request)
    return Json(await services.read(pipeline.job_list, services.engine, principal.namespace, status, limit))


@router.get("/{id}", summary="Get a job", **JOB)
async def get(request: Request, id: str, principal: Principal = Reader) -> Json:
    services = services_of(request)
    return Json(await services.read(pipeline.details, services.engine, id, principal.namespace))


@router.get("/{id}/stream", summary="Follow a job by server-sent events", **kit.JOB_STREAM)
async def stream(
    request: Request, id: str, cursor: kit.Cursor = None, last: kit.LastEventId = None, principal: Principal = Reader
) -> Response:
    """Sends `stage_start`, `stage_progress`, `stage_complete`, `error` and `job_complete`, and ends after that."""
    return await kit.stream_view(request, principal, partial(PipelineView, id_=id), last or cursor)


@router.post("/{id}/cancel", summary="Cancel a job: at once before its start, otherwise by its workers", **CANCEL)
async def cancel(request: Request, id: str, principal: Principal = Operator) -> Json:
    services = services_of(request)

    def find() -> JobStatus:
        return pipeline.find_flow(services.engine, id, principal.namespace)

    job = await services.read(find)
    # No handler of a pending job runs yet: none has to stop first.
    hard = pipeline.status_of(job) == pipeline.PENDING
    can_cancel = True
    try:
        await services.call(kit.cancel_command(job, hard=hard, **kit.headers_of_request(request, principal)))
    except IllegalTransition:
        can_cancel = False
    status = pipeline.status_of(await services.read(find))
    ending = "" if status == pipeline.CANCELLED else " and will be cancelled" if can_cancel else ": it has ended"
    return Json({"cancelled": can_cancel, "message": f"the job is {status}{ending}"})


DIALECT = kit.Dialect(
    "pipeline", PREFIX, router, pipeline_error, title="Async pipeline jobs", states=(pipeline.TABLE,),
    description="Declared flows as jobs: start one by name, follow its stages, cancel it.",
)  # fmt: skip
