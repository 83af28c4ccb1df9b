"""Actions of users on a job: cancel, pause, resume, retry, set its priority, add a stage, delete.

A route chooses the command for a task or for a flow. The engine decides whether it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.commands import Command
from onetray.domain.errors import IllegalTransition, InvalidInput
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.listing import JobStatus
from onetray.http import views
from onetray.http.auth.scopes import Operator, Principal, Submitter
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, accepts, returns
from onetray.http.openapi import answers
from onetray.http.params import Id, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import CancelBody, MetadataBody, PriorityBody, ReasonBody, ResumeBody, RetryBody
from onetray.http.schemas.derive import StageBody
from onetray.http.schemas.sizes import LIMIT
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/jobs/{id}", tags=["jobs"], route_class=NativeRoute)


async def _carry_out(
    request: Request, principal: Principal, id: str, body: Any, command: Callable[[JobStatus, dict[str, Any]], Command]
) -> Any:
    """Carry out the command for this job, which `command` returns."""
    services = services_of(request)
    job = await services.read(services.engine.job_status, id, namespace=principal.namespace)
    return await services.call(command(job, {**headers_of_request(request, principal), "cause": body.reason}))


@router.post("/cancel", summary="Cancel a job", **returns(answers.PLACED), **accepts(CancelBody, required=False))
async def cancel_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """A soft cancel asks running workers to stop within their grace. A hard one revokes their leases at once."""
    body = await read_model(request, CancelBody)

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        return cancel_command(job, hard=body.mode == "hard", **headers)

    return Json(views.placed_view(await _carry_out(request, principal, id, body, command), id))


def cancel_command(job: JobStatus, *, hard: bool, **headers: Any) -> Command:
    """The command that cancels a task or a flow."""
    if job.entity == FLOW.entity:
        return f.CancelFlow(job.id, hard=hard, **headers)
    return c.Cancel(task=job.id, hard=hard, **headers)


@router.post("/pause", summary="Pause a flow", **returns(answers.FLOW_PLACED), **accepts(ReasonBody, required=False))
async def pause_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """No more of its tasks are claimed. Running ones continue, and their reports are accepted."""

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.PauseFlow(job.id, **headers)
        raise IllegalTransition(
            f"only its worker can pause a single task: pause its queue {job.queue!r} instead",
            allowed=list(job.actions),
        )

    body = await read_model(request, ReasonBody)
    return Json(views.placed_view(await _carry_out(request, principal, id, body, command), id))


@router.post("/resume", summary="Resume a paused flow or a waiting task", **returns(answers.PLACED),
             **accepts(ResumeBody, required=False))  # fmt: skip
async def resume_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """A blocked task continues; one that waits for input receives `input`."""
    body = await read_model(request, ResumeBody)

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        if job.entity == TASK.entity:
            return c.Resume(task=job.id, input=body.input, **headers)
        if body.input is not None:
            raise InvalidInput("a flow takes no input: resume the waiting task with it", field="input")
        return f.ResumeFlow(job.id, **headers)

    return Json(views.placed_view(await _carry_out(request, principal, id, body, command), id))


@router.post("/retry", summary="Retry a job that has ended", **returns(answers.PLACED, 201),
             **accepts(RetryBody, required=False))  # fmt: skip
async def retry_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Submits a new job that is linked to the old one. A flow restarts at `from_stage`, or at the stage that failed."""
    body = await read_model(request, RetryBody)

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.RetryFlow(job.id, from_stage=body.from_stage, **headers)
        if body.from_stage is not None:
            raise InvalidInput("a task has no stages: leave from_stage out", field="from_stage")
        return c.Redrive(task=job.id, **headers)

    return Json(views.placed_view(await _carry_out(request, principal, id, body, command)), status_code=201)


@router.post("/priority", summary="Set a job's priority", **returns(answers.PLACED), **accepts(PriorityBody))
async def set_job_priority(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Tasks with a higher priority are claimed first. A flow's counts for its queued tasks and for later ones."""
    body = await read_model(request, PriorityBody)

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.SetFlowPriority(job.id, priority=body.priority, **headers)
        return c.SetPriority(task=job.id, priority=body.priority, **headers)

    return Json(views.placed_view(await _carry_out(request, principal, id, body, command), id))


@router.post("/metadata", summary="Replace a job's metadata", **returns(answers.PLACED), **accepts(MetadataBody))
async def set_job_metadata(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Works in any state. `null` removes the metadata."""
    body = await read_model(request, MetadataBody)

    def command(job: JobStatus, headers: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.SetFlowMetadata(job.id, metadata=body.metadata, **headers)
        return c.SetMetadata(task=job.id, metadata=body.metadata, **headers)

    return Json(views.placed_view(await _carry_out(request, principal, id, body, command), id))


@router.post("/stages", summary="Add a stage to a flow", **returns(answers.FLOW_PLACED, 201), **accepts(StageBody))
async def add_stage(request: Request, id: Id, principal: Principal = Submitter) -> Json:
    """Appends a stage. The flow must not have ended."""
    body = await read_model(request, StageBody)
    command = f.AddStage(flow=id, stage=body.value(), **headers_of_request(request, principal))
    return Json(views.placed_view(await services_of(request).call(command)), status_code=201)


@router.delete("", summary="Delete a job that has ended", **returns(answers.DELETED))
async def delete_job(
    request: Request,
    id: Id,
    reason: Annotated[
        str | None, Query(min_length=1, description="For the event.", json_schema_extra={LIMIT: "reason_chars"})
    ] = None,
    principal: Principal = Operator,
) -> Json:
    """Deletes everything that belongs to it: tasks, events, logs, results and keys. The event `job.deleted` stays."""
    services = services_of(request)
    await services.read(
        services.engine.delete_job, id, reason=reason, by=principal.name, namespace=principal.namespace
    )  # fmt: skip
    return Json({"id": id, "deleted": True})
