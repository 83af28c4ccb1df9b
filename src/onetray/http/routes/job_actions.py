"""What a person does about a job: cancel, pause, resume, retry, and the growing of flows.

Which verb of the engine a word stands for depends on whether the job is a task or a flow. Whether it is allowed, the
engine says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.commands import Command
from onetray.domain.errors import IllegalTransition, InvalidInput
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.listing import JobStatus
from onetray.http import views
from onetray.http.auth.scopes import Operator, Principal, Submitter
from onetray.http.json_answers import Json
from onetray.http.native_route import NativeRoute, gives, takes
from onetray.http.openapi import answers
from onetray.http.params import Id, headers_of_request
from onetray.http.schemas.base import read_model
from onetray.http.schemas.bodies import CancelBody, PriorityBody, ResumeBody, RetryBody, Why
from onetray.http.schemas.derive import StageBody
from onetray.http.services import services_of

router = APIRouter(prefix="/api/v1/jobs/{id}", tags=["jobs"], route_class=NativeRoute)


async def _answer(
    request: Request, principal: Principal, id: str, why: Any, of: Callable[[JobStatus, dict[str, Any]], Command]
) -> Any:
    """Carry out the command that fits the job."""
    services = services_of(request)
    job = await services.read(services.engine.job_status, id, namespace=principal.namespace)
    return await services.call(of(job, {**headers_of_request(request, principal), "cause": why.reason}))


@router.post("/cancel", summary="Cancel a job", **gives(answers.PLACED), **takes(CancelBody, required=False))
async def cancel_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Softly: running workers are asked to stop, and have their grace. Hard: their leases are revoked at once."""
    body = await read_model(request, CancelBody)
    hard = body.mode == "hard"

    def of(job: JobStatus, by: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.CancelFlow(job.id, hard=hard, **by)
        return c.Cancel(task=job.id, hard=hard, **by)

    return Json(views.placed_view(await _answer(request, principal, id, body, of), id))


@router.post("/pause", summary="Pause a flow", **gives(answers.FLOW_PLACED), **takes(Why, required=False))
async def pause_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Nothing more of it is claimed. What runs goes on, and its reports count."""

    def of(job: JobStatus, by: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.PauseFlow(job.id, **by)
        raise IllegalTransition(
            f"a single task is paused by its own worker alone: pause its queue {job.queue!r} to hold it back",
            allowed=list(job.actions),
        )

    return Json(views.placed_view(await _answer(request, principal, id, await read_model(request, Why), of), id))


@router.post("/resume", summary="Resume a flow, or a task that waits", **gives(answers.PLACED),
             **takes(ResumeBody, required=False))  # fmt: skip
async def resume_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """A flow that is paused; or a task that is blocked or waits for input, which it is given."""
    body = await read_model(request, ResumeBody)

    def of(job: JobStatus, by: dict[str, Any]) -> Command:
        if job.entity == TASK.entity:
            return c.Resume(task=job.id, input=body.input, **by)
        if body.input is not None:
            raise InvalidInput("a flow takes no input: give it to the task that waits", field="input")
        return f.ResumeFlow(job.id, **by)

    return Json(views.placed_view(await _answer(request, principal, id, body, of), id))


@router.post("/retry", summary="Run a job again that has ended", **gives(answers.PLACED, 201),
             **takes(RetryBody, required=False))  # fmt: skip
async def retry_job(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """A new job, which names the old one. A flow goes on from the stage that failed, or from another."""
    body = await read_model(request, RetryBody)

    def of(job: JobStatus, by: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            return f.RetryFlow(job.id, from_stage=body.from_stage, **by)
        if body.from_stage is not None:
            raise InvalidInput("a task has no stages: leave from_stage out", field="from_stage")
        return c.Redrive(task=job.id, **by)

    return Json(views.placed_view(await _answer(request, principal, id, body, of)), status_code=201)


@router.post("/priority", summary="Set a task's priority", **gives(answers.RECEIPT), **takes(PriorityBody))
async def set_job_priority(request: Request, id: Id, principal: Principal = Operator) -> Json:
    """Higher ones are claimed first."""
    body = await read_model(request, PriorityBody)

    def of(job: JobStatus, by: dict[str, Any]) -> Command:
        if job.entity == FLOW.entity:
            raise InvalidInput("a flow has no priority: set it for its tasks", field="id")
        return c.SetPriority(task=job.id, priority=body.priority, **by)

    return Json(views.placed_view(await _answer(request, principal, id, body, of), id))


@router.post("/stages", summary="Add a stage to a flow", **gives(answers.FLOW_PLACED, 201), **takes(StageBody))
async def add_stage(request: Request, id: Id, principal: Principal = Submitter) -> Json:
    """At its end, while it has not ended."""
    body = await read_model(request, StageBody)
    command = f.AddStage(flow=id, stage=body.value(), **headers_of_request(request, principal))
    return Json(views.placed_view(await services_of(request).call(command)), status_code=201)
