"""Jobnik's routes: jobs, stages and tasks at /v1. Each declares its scope and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from onetray.dialects.calls import Call, SingleFlow, ThreadRoute, caller, flow_of, stage_of, stages_of
from onetray.dialects.jobnik import lists
from onetray.dialects.jobnik import values as v
from onetray.dialects.jobnik.errors import Refused, finite, illegal, takes_no_tasks
from onetray.dialects.paging import PageQuery
from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.flow import Flow, StageSpec, TaskSpec
from onetray.domain.lifecycle import CREATED, PENDING
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SUBMIT, WORK
from onetray.http.json_answers import Json
from onetray.http.schemas.base import ID

QUEUE = "default"
"""Jobnik has no queues: its tasks are in the one that tasks in Python have by default."""
AT_ONCE = Policy(max_attempts=1, backoff_base_s=0, jitter=False)
"""The policy of a type that no Python worker has declared: a failed task can be dequeued again at once."""

router = APIRouter(prefix="/v1", tags=["jobnik"], route_class=ThreadRoute)
Listing = Annotated[Call, caller(READ)]
Reading = Annotated[Call, caller(READ, WORK)]
Submitting = Annotated[Call, caller(SUBMIT)]
Working = Annotated[Call, caller(WORK)]
Operating = Annotated[Call, caller(OPERATE)]
Id = Annotated[str, Path(pattern=ID)]
Type = Annotated[str, Path(min_length=1, max_length=50)]
WithStages = Annotated[bool, Query(alias="should_return_stages")]
WithTasks = Annotated[bool, Query(alias="should_return_tasks")]


def _done(what: str) -> Json:
    return Json({"code": f"{what}_SUCCESSFULLY"})


# Jobs.


@router.post("/jobs", summary="Create a job", **v.JOB_CREATED)
def create_job(on: Submitting, new: v.CreateJob) -> Json:
    placed = on.run(
        f.SubmitFlow, name=new.name, data=new.data, priority=v.PRIORITIES[new.priority], **new.shared
    )  # fmt: skip
    return Json(v.as_job(on.read(on.engine.flow, placed.id)), 201)


@router.get("/jobs", summary="List jobs, newest first", **v.LIST)
def jobs(on: Listing, query: Annotated[lists.JobQuery, Query()]) -> Json:
    return Json(lists.jobs(on, query))


@router.get("/jobs/{jobId}", summary="Get a job", **v.JOB)
def job(on: Reading, jobId: Id, with_stages: WithStages = False) -> Json:
    flow = on.read(flow_of, on.engine, jobId)
    return Json(v.as_job(flow, stages_of(on.engine, flow) if with_stages else None))


@router.delete("/jobs/{jobId}", summary="Delete an ended job, with its stages and tasks", **v.DONE)
def delete_job(on: Operating, jobId: Id) -> Json:
    flow = on.read(flow_of, on.engine, jobId)
    try:
        on.read(on.engine.delete_job, flow.id, by=on.principal.name)
    except Conflict:
        raise Refused(f"Job is not in a finite state: {v.job_state(flow)}", refusal="JOB_NOT_IN_FINITE_STATE") from None
    return _done("JOB_DELETED")


@router.patch("/jobs/{jobId}/user-metadata", summary="Replace a job's metadata", **v.DONE)
def set_job_metadata(on: Operating, jobId: Id, new: v.Object) -> Json:
    flow = on.read(flow_of, on.engine, jobId)
    on.run(c.SetMetadata if isinstance(flow, SingleFlow) else f.SetFlowMetadata, flow.id, metadata=new)
    return _done("JOB_MODIFIED")


@router.patch("/jobs/{jobId}/priority", summary="Set a job's priority", **v.DONE)
def set_priority(on: Operating, jobId: Id, new: v.NewPriority) -> Response:
    flow = on.read(flow_of, on.engine, jobId)
    if v.priority_name(flow.priority) == new.priority:
        return Response(status_code=204, headers={"Reason": "PRIORITY_CANNOT_BE_UPDATED_TO_SAME_VALUE"})
    verb = c.SetPriority if isinstance(flow, SingleFlow) else f.SetFlowPriority
    try:
        on.run(verb, flow.id, priority=v.PRIORITIES[new.priority])
    except IllegalTransition:
        raise finite("JOB", v.job_state(flow)) from None
    return _done("JOB_MODIFIED")


@router.put("/jobs/{jobId}/status", summary="Resume, pause or abort a job", **v.DONE)
def set_job_status(on: Operating, jobId: Id, new: v.SetStatus[Literal["PENDING", "PAUSED", "ABORTED"]]) -> Json:
    flow = on.read(flow_of, on.engine, jobId)
    try:
        refused = _set_status(on, flow, new.status).repeated
    except IllegalTransition:
        refused = True
    if refused:
        raise illegal("JOB", v.job_state(on.read(flow_of, on.engine, jobId)), new.status)
    return _done("JOB_MODIFIED")


def _set_status(on: Call, flow: Flow, status: str) -> Any:
    is_single = isinstance(flow, SingleFlow)
    if status == "ABORTED":
        return on.run(c.Cancel if is_single else f.CancelFlow, flow.id, hard=True)
    if is_single:
        raise illegal("JOB", v.job_state(flow), status)
    if status == "PAUSED":
        return on.run(f.PauseFlow, flow.id)
    return on.run(f.OpenFlow if flow.state == CREATED else f.ResumeFlow, flow.id)


# Stages.


@router.post("/jobs/{jobId}/stage", summary="Add a stage to a job", **v.STAGE_CREATED)
def add_stage(on: Submitting, jobId: Id, new: v.CreateStage) -> Json:
    stage = StageSpec(
        type=new.type, data=new.data, start_as_waiting=new.startAsWaiting, takes_more=False, collect="none",
        **new.shared,
    )  # fmt: skip
    try:
        placed = on.run(f.AddStage, jobId, stage=stage)
    except IllegalTransition as e:
        raise finite("JOB", v.JOB_STATES[e.facts["from"]]) from None
    return Json(v.as_stage(on.read(on.engine.stage, placed.id)), 201)


@router.get("/jobs/{jobId}/stages", summary="The stages of a job, in order", **v.LIST)
def stages_of_job(on: Listing, jobId: Id, with_tasks: WithTasks = False) -> Json:
    return Json(lists.stages(on, lists.StageQuery(job_id=jobId, should_return_tasks=with_tasks)))


@router.get("/stages", summary="List stages, newest first", **v.LIST)
def stages(on: Listing, query: Annotated[lists.StageQuery, Query()]) -> Json:
    return Json(lists.stages(on, query))


@router.get("/stages/{stageId}", summary="Get a stage", **v.STAGE)
def stage(on: Reading, stageId: Id, with_tasks: WithTasks = False) -> Json:
    found = on.read(stage_of, on.engine, stageId)
    return Json(lists.with_tasks(on, [found])[0] if with_tasks else v.as_stage(found))


@router.get("/stages/{stageId}/summary", summary="How many tasks of a stage are in each state", **v.SUMMARY)
def summary(on: Reading, stageId: Id) -> Json:
    return Json(v.as_summary(on.read(stage_of, on.engine, stageId).counts))


@router.patch("/stages/{stageId}/user-metadata", summary="Replace a stage's metadata", **v.DONE)
def set_stage_metadata(on: Operating, stageId: Id, new: v.Object) -> Json:
    on.run(f.SetStageMetadata, stageId, metadata=new)
    return _done("STAGE_MODIFIED")


@router.put("/stages/{stageId}/status", summary="Approve a waiting stage", **v.DONE)
def set_stage_status(on: Operating, stageId: Id, new: v.SetStatus[Literal["PENDING"]]) -> Json:
    try:
        placed = on.run(f.ApproveStage, stageId)
    except IllegalTransition as e:
        raise illegal("STAGE", v.STAGE_STATES[e.facts["from"]], new.status) from None
    except Conflict:
        raise Refused("Previous stage is not COMPLETED", refusal="ILLEGAL_STAGE_STATUS_TRANSITION") from None
    if placed.repeated and placed.was != PENDING:
        raise illegal("STAGE", v.STAGE_STATES[placed.was], new.status)
    return _done("STAGE_MODIFIED")


# Tasks.


@router.post("/stages/{stageId}/tasks", summary="Add tasks to a stage", **v.TASKS_CREATED)
def add_tasks(on: Submitting, stageId: Id, new: v.CreateTasks) -> Json:
    type_ = on.read(on.engine.stage, stageId, raw=True).type
    policy = on.read(on.engine.policy_of, type_)
    options: dict[str, Any] = {"queue": QUEUE, "policy": AT_ONCE if policy in (None, Policy()) else policy}
    specs = [TaskSpec(type_, task.data, max_attempts=task.maxAttempts, **task.shared, **options) for task in new]
    try:
        placed = on.run(f.AddTasks, stageId, tasks=specs)
    except IllegalTransition as e:
        raise takes_no_tasks(e.facts["from"]) from None
    return Json([v.as_task(task) for task in on.read(on.engine.tasks_by_id, placed.tasks)], 201)


@router.patch("/stages/{stageType}/tasks/dequeue", summary="Take a task of a type", **v.TASK)
async def dequeue(on: Working, stageType: Type) -> Json:
    task = await on.claim(
        worker=f"jobnik:{on.principal.name}", queue=QUEUE, kinds=(stageType,),
        lease_s=on.services.config.jobnik_lease_s,
    )  # fmt: skip
    if task is None:
        raise NotFound(f"there is no task of type {stageType} to dequeue")
    return Json(v.as_task(task))


@router.get("/tasks", summary="List tasks, newest first", **v.LIST)
def tasks(on: Listing, query: Annotated[lists.TaskQuery, Query()]) -> Json:
    return Json(lists.tasks(on, query))


@router.get("/stages/{stageId}/tasks", summary="The tasks of a stage", **v.LIST)
def tasks_of_stage(on: Listing, stageId: Id, query: Annotated[PageQuery, Query()]) -> Json:
    return Json(lists.tasks(on, lists.TaskQuery(stage_id=stageId, **query.model_dump())))


@router.get("/tasks/{taskId}", summary="Get a task", **v.TASK)
def task(on: Reading, taskId: Id) -> Json:
    return Json(v.as_task(on.read(on.engine.task, taskId, raw=True)))


@router.patch("/tasks/{taskId}/user-metadata", summary="Replace a task's metadata", **v.DONE)
def set_task_metadata(on: Operating, taskId: Id, new: v.Object) -> Json:
    on.run(c.SetMetadata, taskId, metadata=new)
    return _done("TASK_MODIFIED")


@router.put("/tasks/{taskId}/status", summary="Complete or fail a task", **v.TASK)
async def set_task_status(on: Working, taskId: Id, new: v.SetStatus[Literal["COMPLETED", "FAILED"]]) -> Json:
    """The report is about the current attempt: Jobnik's workers know no fence."""
    if new.status == "COMPLETED":
        verdict, task = await on.report(c.Succeed, taskId)
    else:
        verdict, task = await on.report(c.Fail, taskId, message="the worker reported a failure", retryable=True)
    value = verdict.unwrap() if task is None or not isinstance(verdict.error, IllegalTransition) else None
    assert task is not None
    if value is None or value.repeated:
        raise illegal("TASK", v.task_state(task), new.status)
    return Json(v.as_task(task))
