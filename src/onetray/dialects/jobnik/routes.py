"""Jobnik's routes and errors. Each route declares its scope and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response

from onetray.dialects import ajv, paging
from onetray.dialects.calls import Call
from onetray.dialects.jobnik import values as v
from onetray.dialects.jobnik.values import JOB_STATES, STAGE_STATES, TASK_STATES
from onetray.dialects.kit import Bodies, Id, Json, Refusal, SetStatus, instead_of
from onetray.dialects.method_routes import delete, get, patch, post, put
from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import Conflict, IllegalTransition, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import STAGE
from onetray.domain.policy import Policy
from onetray.domain.token import OPERATE, READ, SUBMIT, WORK

QUEUE = "default"
"""Jobnik has no queues: its tasks are in the one that tasks in Python have by default."""
AT_ONCE = Policy(max_attempts=1, backoff_base_s=0, jitter=False)
"""The policy of a type that no Python worker has declared: a failed task can be dequeued again at once."""
VERBS = {"PENDING": Call.resume, "PAUSED": Call.pause, "ABORTED": Call.abort}
CODES = {400: "VALIDATION_ERROR", 409: "TASK_STATUS_UPDATE_FAILED", 422: "VALIDATION_ERROR"}
"""Other errors have the code of the native API, in capitals."""
ILLEGAL = Refusal("ILLEGAL_{what}_STATUS_TRANSITION", "Illegal status transition from {was} to {to}")
TOO_EARLY = Refusal("ILLEGAL_STAGE_STATUS_TRANSITION", "Previous stage is not COMPLETED")
ENDED = Refusal("{what}_IN_FINITE_STATE", "The {what} is in the finite state {state}")
OPEN = Refusal("JOB_NOT_IN_FINITE_STATE", "The job is {still}: {state}")
BEGUN = Refusal("NOT_ALLOWED_TO_ADD_TASKS_TO_IN_PROGRESS_STAGE", "Tasks cannot be added to a stage that is IN_PROGRESS")
Type = Annotated[str, Path(min_length=1, max_length=50)]
WithTasks = Annotated[bool, Query(alias="should_return_tasks")]


def jobnik_error(problem: dict[str, Any], scope: Any, headers: dict[str, str] | None = None) -> Response:
    """A problem document as Jobnik's error: a message and a code."""
    status, path = problem["status"], scope["path"]
    code = problem.get("refusal") or CODES.get(status, problem["code"].upper())
    if problem["code"] == "not_found":
        # The path says what was not found; a dequeue finds tasks.
        entities = () if path.endswith("/dequeue") else ("JOB", "STAGE")
        code = next((f"{name}_NOT_FOUND" for name in entities if f"/{name.lower()}s" in path), "TASK_NOT_FOUND")
    return Json({"message": ajv.ajv_detail(problem, scope), "code": code}, 400 if status == 422 else status, headers)


class Jobnik(Call):
    """A request of a Jobnik client."""

    @post("/jobs", SUBMIT, summary="Create a job", **v.JOB_CREATED)
    def create_job(self, new: v.CreateJob) -> v.Object:
        return v.as_job(self.find_flow(self.run(f.SubmitFlow, **dict(new)).id))

    @get("/jobs", READ, summary="List jobs, newest first", **v.LIST)
    def jobs(self, query: Annotated[v.JobQuery, Query()]) -> Any:
        return paging.page_or_all(query, self.list_flows(**query.filters), v.as_job, self.config.jobnik_pages)

    @get("/jobs/{jobId}", READ, WORK, summary="Get a job", **v.JOB)
    def job(self, jobId: Id, with_stages: Annotated[bool, Query(alias="should_return_stages")] = False) -> v.Object:
        return v.as_job(*self.with_stages(self.find_flow(jobId), with_stages))

    @delete("/jobs/{jobId}", OPERATE, summary="Delete an ended job, with its stages and tasks", **v.done("JOB_DELETED"))
    def delete_job(self, jobId: Id) -> None:
        flow = self.find_flow(jobId)
        still = "not in a finite state" if flow.ending is None else "still ending, try again"
        with instead_of(Conflict, OPEN, still=still, state=JOB_STATES.show(flow, flow.ending)):
            self.read(self.engine.delete_job, flow.id, by=self.principal.name)

    @patch("/jobs/{jobId}/user-metadata", OPERATE, summary="Replace a job's metadata", **v.done("JOB_MODIFIED"))
    def set_job_metadata(self, jobId: Id, new: v.Object) -> None:
        self.run_for(self.find_flow(jobId), f.SetFlowMetadata, c.SetMetadata, metadata=new)

    @patch("/jobs/{jobId}/priority", OPERATE, summary="Set a job's priority", **v.done("JOB_MODIFIED"))
    def set_priority(self, jobId: Id, new: v.NewPriority) -> Response | None:
        flow = self.find_flow(jobId)
        if v.PRIORITIES.name_of(flow.priority) == new.priority:
            return Response(status_code=204, headers={"Reason": "PRIORITY_CANNOT_BE_UPDATED_TO_SAME_VALUE"})
        with instead_of(IllegalTransition, ENDED, what="job", state=JOB_STATES.show(flow, flow.ending)):
            self.run_for(flow, f.SetFlowPriority, c.SetPriority, priority=v.PRIORITIES[new.priority])
        return None

    @put("/jobs/{jobId}/status", OPERATE, summary="Resume, pause or abort a job", **v.done("JOB_MODIFIED"))
    def set_job_status(self, jobId: Id, new: SetStatus[Literal["PENDING", "PAUSED", "ABORTED"]]) -> None:
        with instead_of(IllegalTransition, ILLEGAL, what="job", was=lambda _: self.job(jobId)["status"], to=new.status):
            VERBS[new.status](self, self.find_flow(jobId))

    @post("/jobs/{jobId}/stage", SUBMIT, summary="Add a stage to a job", **v.STAGE_CREATED)
    def add_stage(self, jobId: Id, new: v.CreateStage) -> v.Object:
        stage = StageSpec(takes_more=False, collect="none", **dict(new))
        with instead_of(IllegalTransition, ENDED, what="job", state=JOB_STATES.of_error):
            placed = self.run(f.AddStage, jobId, stage=stage)
        return v.as_stage(self.find_stage(placed.id))

    @get("/jobs/{jobId}/stages", READ, summary="The stages of a job, in order", **v.LIST)
    def stages_of_job(self, jobId: Id, with_tasks: WithTasks = False) -> Any:
        return self.stages(v.StageQuery(job_id=jobId, should_return_tasks=with_tasks))

    @get("/stages", READ, summary="List stages, newest first", **v.LIST)
    def stages(self, query: Annotated[v.StageQuery, Query()]) -> Any:
        return paging.page_or_all(query, self.list_stages(**query.filters), v.as_stage, self.config.jobnik_pages)

    @get("/stages/{stageId}", READ, WORK, summary="Get a stage", **v.STAGE)
    def stage(self, stageId: Id, with_tasks: WithTasks = False) -> v.Object:
        return v.as_stage(*self.with_tasks([self.find_stage(stageId)], with_tasks)[0])

    @get("/stages/{stageId}/summary", READ, WORK, summary="How many tasks of a stage are in each state", **v.SUMMARY)
    def summary(self, stageId: Id) -> Any:
        return self.stage(stageId)["summary"]

    @patch("/stages/{stageId}/user-metadata", OPERATE, summary="Replace a stage's metadata", **v.done("STAGE_MODIFIED"))
    def set_stage_metadata(self, stageId: Id, new: v.Object) -> None:
        self.run(f.SetStageMetadata, stageId, metadata=new)

    @put("/stages/{stageId}/status", OPERATE, summary="Approve a waiting stage", **v.done("STAGE_MODIFIED"))
    def set_stage_status(self, stageId: Id, new: SetStatus[Literal["PENDING"]]) -> None:
        with (
            instead_of(Conflict, TOO_EARLY),
            instead_of(IllegalTransition, ILLEGAL, what="stage", was=STAGE_STATES.of_error, to=new.status),
        ):
            self.approve(stageId)

    @post("/stages/{stageId}/tasks", SUBMIT, summary="Add tasks to a stage", **v.TASKS_CREATED)
    def add_tasks(self, stageId: Id, new: Bodies[v.CreateTask]) -> list[v.Object]:
        type_ = self.read(self.engine.stage, stageId, raw=True).type
        policy = self.policy_of(type_, AT_ONCE)
        tasks = [TaskSpec(type_, queue=QUEUE, policy=policy, **dict(task)) for task in new]
        try:
            placed = self.run(f.AddTasks, stageId, tasks=tasks)
        except IllegalTransition as e:
            ended = e.facts["from"] in STAGE.terminal
            raise ENDED(what="stage", state=STAGE_STATES.of_error(e)) if ended else BEGUN() from None
        return [v.as_task(task) for task in self.read(self.engine.tasks_by_id, placed.tasks)]

    @patch("/stages/{stageType}/tasks/dequeue", WORK, summary="Take a task of a type", **v.TASK)
    async def dequeue(self, stageType: Type) -> Json:
        worker, lease_s = f"jobnik:{self.principal.name}", self.services.config.jobnik_lease_s
        task = await self.claim(worker=worker, queue=QUEUE, kinds=(stageType,), lease_s=lease_s)
        if task is None:
            raise NotFound(f"there is no task of type {stageType} to dequeue")
        return Json(v.as_task(task))

    @get("/tasks", READ, summary="List tasks, newest first", **v.LIST)
    def tasks(self, query: Annotated[v.TaskQuery, Query()]) -> Any:
        attempted = {"PENDING": False, "RETRIED": True}.get(query.status or "")
        found = self.list_tasks(states=TASK_STATES.natives(query.status), attempted=attempted, **query.filters)
        return paging.page_or_all(query, found, v.as_task, self.config.jobnik_pages)

    @get("/stages/{stageId}/tasks", READ, summary="The tasks of a stage", **v.LIST)
    def tasks_of_stage(self, stageId: Id, query: Annotated[paging.PageQuery, Query()]) -> Any:
        return self.tasks(v.TaskQuery(stage_id=stageId, page=query.page, page_size=query.page_size))

    @get("/tasks/{taskId}", READ, WORK, summary="Get a task", **v.TASK)
    def task(self, taskId: Id) -> v.Object:
        return v.as_task(self.read(self.engine.task, taskId, raw=True))

    @patch("/tasks/{taskId}/user-metadata", OPERATE, summary="Replace a task's metadata", **v.done("TASK_MODIFIED"))
    def set_task_metadata(self, taskId: Id, new: v.Object) -> None:
        self.run(c.SetMetadata, taskId, metadata=new)

    @put("/tasks/{taskId}/status", WORK, summary="Complete or fail a task", **v.TASK)
    async def set_task_status(self, taskId: Id, new: SetStatus[Literal["COMPLETED", "FAILED"]]) -> Json:
        """The report is about the current attempt: Jobnik's workers know no fence."""
        if new.status == "COMPLETED":
            verdict, task = await self.report(c.Succeed, taskId)
        else:
            verdict, task = await self.report(c.Fail, taskId, message="the worker reported a failure", retryable=True)
        if task is None or not isinstance(verdict.error, IllegalTransition | None):
            raise verdict.error or NotFound(f"there is no task {taskId}")
        if verdict.error is not None or verdict.value.repeated:
            raise ILLEGAL(what="task", was=TASK_STATES.show(task), to=new.status)
        return Json(v.as_task(task))
