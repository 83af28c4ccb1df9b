"""Jobnik's routes: jobs, stages and tasks at /v1. Each declares its scope and its answer."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from onetray.dialects.calls import Call, SingleStage, ThreadRoute, caller
from onetray.dialects.jobnik import values as v
from onetray.dialects.jobnik.errors import JobnikRefusal, illegal_status, in_finite_state
from onetray.dialects.jobnik.states import JOB_STATES, STAGE_STATES
from onetray.dialects.paging import PageQuery, page_of_values, page_or_all
from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import CREATED, FLOW, PENDING, STAGE
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SUBMIT, WORK
from onetray.http.json_answers import Json
from onetray.http.schemas.base import ID

QUEUE = "default"
"""Jobnik has no queues: its tasks are in the one that tasks in Python have by default."""
AT_ONCE = Policy(max_attempts=1, backoff_base_s=0, jitter=False)
"""The policy of a type that no Python worker has declared: a failed task can be dequeued again at once."""
VERBS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "PENDING": (f.ResumeFlow, None, {}), "PAUSED": (f.PauseFlow, None, {}),
    "ABORTED": (f.CancelFlow, c.Cancel, {"hard": True}),
}  # fmt: skip
"""What sets the status of a flow, and that of a task without a flow."""

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


@router.post("/jobs", summary="Create a job", **v.JOB_CREATED)
def create_job(on: Submitting, new: v.CreateJob) -> Json:
    priority = v.PRIORITIES[new.priority]
    placed = on.run(f.SubmitFlow, name=new.name, data=new.data, priority=priority, **new.shared)
    return Json(v.as_job(on.flow(placed.id)), 201)


@router.get("/jobs", summary="List jobs, newest first", **v.LIST)
def jobs(on: Listing, query: Annotated[v.JobQuery, Query()]) -> Json:
    priority = None if query.priority is None else v.PRIORITIES[query.priority]
    read = partial(on.read, on.engine.jobs, kind=query.job_name, priority=priority, **query.times)

    def show(jobs: Any) -> list[Any]:
        return [v.as_job(*each) for each in on.flows(jobs, query.should_return_stages)]

    return Json(page_or_all(query, read, show, on.services.config.jobnik_pages))


@router.get("/jobs/{jobId}", summary="Get a job", **v.JOB)
def job(on: Reading, jobId: Id, with_stages: WithStages = False) -> Json:
    flow = on.flow(jobId)
    return Json(v.as_job(flow, on.stages(flow) if with_stages else None))


@router.delete("/jobs/{jobId}", summary="Delete an ended job, with its stages and tasks", **v.DONE)
def delete_job(on: Operating, jobId: Id) -> Json:
    flow = on.flow(jobId)
    try:
        on.read(on.engine.delete_job, flow.id, by=on.principal.name)
    except Conflict:
        still = "not in a finite state" if flow.ending is None else "still ending, try again"
        message = f"The job is {still}: {v.job_state(flow)}"
        raise JobnikRefusal(message, refusal="JOB_NOT_IN_FINITE_STATE") from None
    return _done("JOB_DELETED")


@router.patch("/jobs/{jobId}/user-metadata", summary="Replace a job's metadata", **v.DONE)
def set_job_metadata(on: Operating, jobId: Id, new: v.Object) -> Json:
    on.run_for(on.flow(jobId), f.SetFlowMetadata, c.SetMetadata, metadata=new)
    return _done("JOB_MODIFIED")


@router.patch("/jobs/{jobId}/priority", summary="Set a job's priority", **v.DONE)
def set_priority(on: Operating, jobId: Id, new: v.NewPriority) -> Response:
    flow = on.flow(jobId)
    if v.priority_name(flow.priority) == new.priority:
        return Response(status_code=204, headers={"Reason": "PRIORITY_CANNOT_BE_UPDATED_TO_SAME_VALUE"})
    try:
        on.run_for(flow, f.SetFlowPriority, c.SetPriority, priority=v.PRIORITIES[new.priority])
    except IllegalTransition:
        raise in_finite_state("JOB", v.job_state(flow)) from None
    return _done("JOB_MODIFIED")


@router.put("/jobs/{jobId}/status", summary="Resume, pause or abort a job", **v.DONE)
def set_job_status(on: Operating, jobId: Id, new: v.SetStatus[Literal["PENDING", "PAUSED", "ABORTED"]]) -> Json:
    flow = on.flow(jobId)
    verb, of_single, fields = VERBS[new.status]
    if verb is f.ResumeFlow and flow.state == CREATED:
        verb = f.OpenFlow
    try:
        refused = on.run_for(flow, verb, of_single, **fields).repeated
    except IllegalTransition:
        refused = True
    if refused:
        raise illegal_status("JOB", v.job_state(on.flow(jobId)), new.status)
    return _done("JOB_MODIFIED")


@router.post("/jobs/{jobId}/stage", summary="Add a stage to a job", **v.STAGE_CREATED)
def add_stage(on: Submitting, jobId: Id, new: v.CreateStage) -> Json:
    options = {"start_as_waiting": new.startAsWaiting, "takes_more": False, "collect": "none", **new.shared}
    try:
        placed = on.run(f.AddStage, jobId, stage=StageSpec(type=new.type, data=new.data, **options))
    except IllegalTransition as e:
        raise in_finite_state("JOB", JOB_STATES[e.facts["from"]]) from None
    return Json(v.as_stage(on.stage(placed.id)), 201)


@router.get("/jobs/{jobId}/stages", summary="The stages of a job, in order", **v.LIST)
def stages_of_job(on: Listing, jobId: Id, with_tasks: WithTasks = False) -> Json:
    return stages(on, v.StageQuery(job_id=jobId, should_return_tasks=with_tasks))


@router.get("/stages", summary="List stages, newest first", **v.LIST)
def stages(on: Listing, query: Annotated[v.StageQuery, Query()]) -> Json:
    states, type_, pages = query.states, query.stage_type, on.services.config.jobnik_pages

    def show(stages: Any) -> list[Any]:
        tasks: Any = on.tasks(stages) if query.should_return_tasks else {}
        return [v.as_stage(stage, tasks.get(stage.id)) for stage in stages]

    if query.job_id is None:
        return Json(page_or_all(query, partial(on.read, on.engine.find_stages, type=type_, states=states), show, pages))
    found = on.stages(on.flow(query.job_id))
    wanted = [s for s in found if type_ in (None, s.type) and (not states or s.state in states)]
    return Json(page_of_values(query, wanted, show, pages))


@router.get("/stages/{stageId}", summary="Get a stage", **v.STAGE)
def stage(on: Reading, stageId: Id, with_tasks: WithTasks = False) -> Json:
    found = on.stage(stageId)
    return Json(v.as_stage(found, on.tasks([found])[found.id] if with_tasks else None))


@router.get("/stages/{stageId}/summary", summary="How many tasks of a stage are in each state", **v.SUMMARY)
def summary(on: Reading, stageId: Id) -> Json:
    return Json(v.as_summary(on.stage(stageId).counts))


@router.patch("/stages/{stageId}/user-metadata", summary="Replace a stage's metadata", **v.DONE)
def set_stage_metadata(on: Operating, stageId: Id, new: v.Object) -> Json:
    on.run(f.SetStageMetadata, stageId, metadata=new)
    return _done("STAGE_MODIFIED")


@router.put("/stages/{stageId}/status", summary="Approve a waiting stage", **v.DONE)
def set_stage_status(on: Operating, stageId: Id, new: v.SetStatus[Literal["PENDING"]]) -> Json:
    try:
        placed = on.run(f.ApproveStage, stageId)
    except IllegalTransition as e:
        raise illegal_status("STAGE", STAGE_STATES[e.facts["from"]], new.status) from None
    except Conflict:
        refusal = "ILLEGAL_STAGE_STATUS_TRANSITION"
        raise JobnikRefusal("Previous stage is not COMPLETED", refusal=refusal) from None
    if placed.repeated and placed.was != PENDING:
        raise illegal_status("STAGE", STAGE_STATES[placed.was], new.status)
    return _done("STAGE_MODIFIED")


@router.post("/stages/{stageId}/tasks", summary="Add tasks to a stage", **v.TASKS_CREATED)
def add_tasks(on: Submitting, stageId: Id, new: v.CreateTasks) -> Json:
    type_ = on.read(on.engine.stage, stageId, raw=True).type
    policy = on.read(on.engine.policy_of, type_)
    options: dict[str, Any] = {"queue": QUEUE, "policy": AT_ONCE if policy in (None, Policy()) else policy}
    specs = [TaskSpec(type_, task.data, max_attempts=task.maxAttempts, **task.shared, **options) for task in new]
    try:
        placed = on.run(f.AddTasks, stageId, tasks=specs)
    except IllegalTransition as e:
        state = e.facts["from"]
        if state in STAGE.terminal | FLOW.terminal:
            raise in_finite_state("STAGE", STAGE_STATES[state]) from None
        refusal = "NOT_ALLOWED_TO_ADD_TASKS_TO_IN_PROGRESS_STAGE"
        raise JobnikRefusal("Tasks cannot be added to a stage that is IN_PROGRESS", refusal=refusal) from None
    return Json(v.as_tasks(on.read(on.engine.tasks_by_id, placed.tasks)), 201)


@router.patch("/stages/{stageType}/tasks/dequeue", summary="Take a task of a type", **v.TASK)
async def dequeue(on: Working, stageType: Type) -> Json:
    worker, lease_s = f"jobnik:{on.principal.name}", on.services.config.jobnik_lease_s
    task = await on.claim(worker=worker, queue=QUEUE, kinds=(stageType,), lease_s=lease_s)
    if task is None:
        raise NotFound(f"there is no task of type {stageType} to dequeue")
    return Json(v.as_task(task))


@router.get("/tasks", summary="List tasks, newest first", **v.LIST)
def tasks(on: Listing, query: Annotated[v.TaskQuery, Query()]) -> Json:
    pages = on.services.config.jobnik_pages
    if query.stage_id is not None and isinstance(on.stage(query.stage_id), SingleStage):
        return Json(page_of_values(query, on.read(on.engine.tasks_by_id, [query.stage_id]), v.as_tasks, pages))
    read = partial(on.read, on.engine.find_tasks, stage=query.stage_id, **query.filters, **query.times)
    return Json(page_or_all(query, read, v.as_tasks, pages))


@router.get("/stages/{stageId}/tasks", summary="The tasks of a stage", **v.LIST)
def tasks_of_stage(on: Listing, stageId: Id, query: Annotated[PageQuery, Query()]) -> Json:
    return tasks(on, v.TaskQuery(stage_id=stageId, page=query.page, page_size=query.page_size))


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
    if task is None or not isinstance(verdict.error, IllegalTransition | None):
        raise verdict.error or NotFound(f"there is no task {taskId}")
    if verdict.error is not None or verdict.value.repeated:
        raise illegal_status("TASK", v.task_state(task), new.status)
    return Json(v.as_task(task))
