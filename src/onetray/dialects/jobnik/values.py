"""Jobs, stages and tasks in Jobnik's words: how states correspond, what its clients send, and what they get."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from onetray.dialects import calls, kit, paging
from onetray.dialects.method_routes import answers_always
from onetray.domain import lifecycle as native
from onetray.domain.flow import Flow, Stage
from onetray.domain.task import Task
from onetray.http.openapi.examples import TASK as SOME_TASK

JOB_STATES = kit.StateTable.read("flow", "job", """
    created = CREATED; pending = PENDING; running = IN_PROGRESS; waiting = PENDING/IN_PROGRESS; paused = PAUSED
    succeeded, partial = COMPLETED; failed = FAILED; cancelled = ABORTED
    new → CREATED → PENDING → IN_PROGRESS → COMPLETED, FAILED
    PENDING, IN_PROGRESS → PAUSED → PENDING
    CREATED, PENDING, IN_PROGRESS, PAUSED → ABORTED
    CREATED → FAILED: the deadline of a native flow
    PENDING → FAILED: the deadline of a native flow, or its first stage was rejected
    PENDING → COMPLETED: all its stages were skipped
    PAUSED → COMPLETED: its last task ended while it was paused
    PAUSED → FAILED: its last task ended while it was paused, or the deadline of a native flow
    IN_PROGRESS → PENDING: a stage was approved, and none of its tasks has started
""", second_after=("start",))  # fmt: skip
STAGE_STATES = kit.StateTable.read("stage", "stage", """
    created = CREATED; waiting = WAITING; pending = PENDING; running = IN_PROGRESS; succeeded, partial = COMPLETED
    failed = FAILED; skipped, cancelled = ABORTED
    new → CREATED → PENDING
    WAITING → PENDING → IN_PROGRESS → COMPLETED, FAILED
    CREATED, PENDING, IN_PROGRESS → WAITING
    CREATED, WAITING, PENDING, IN_PROGRESS → ABORTED
    CREATED → COMPLETED: a retried flow carries it over from the original one
    WAITING → FAILED: it was rejected, or a task failed while it waited
""")  # fmt: skip
TASK_STATES = kit.StateTable.read("task", "task", """
    queued = PENDING/RETRIED; assigned, running = IN_PROGRESS; blocked, waiting_input = CREATED
    succeeded = COMPLETED; failed, dead_lettered, cancelled = FAILED
    new → PENDING → IN_PROGRESS → COMPLETED, FAILED
    IN_PROGRESS → RETRIED → IN_PROGRESS
    CREATED, PENDING, RETRIED → FAILED: its job was aborted
    IN_PROGRESS → PENDING, CREATED: a worker in Python does this; Jobnik's cannot
    CREATED → PENDING, RETRIED: a user resumed it
    PENDING, RETRIED → COMPLETED: a redriven flow carries it over from the original one
""", second_after=("retry", "expire"), is_second=lambda task: task.attempts > 0)  # fmt: skip

Object = dict[str, Any]
PRIORITIES = kit.Levels(VERY_HIGH=20, HIGH=10, MEDIUM=0, LOW=-10, VERY_LOW=-20)
PriorityName = Literal["VERY_HIGH", "HIGH", "MEDIUM", "LOW", "VERY_LOW"]
Priority = Annotated[PriorityName, AfterValidator(PRIORITIES.get)]
StageStatus = Literal["CREATED", "WAITING", "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED"]
StageStates = Annotated[StageStatus, AfterValidator(STAGE_STATES.natives)]
TaskStatus = Literal["CREATED", "PENDING", "IN_PROGRESS", "RETRIED", "COMPLETED", "FAILED"]


class Created(kit.TracedBody):
    """What every new job, stage and task has."""

    metadata: Object = Field(default_factory=dict, alias="userMetadata")


class CreateJob(Created):
    name: str = Field(min_length=2, max_length=50, examples=["thumbnails"])
    data: Object
    priority: Priority = Field(default="MEDIUM", validate_default=True)


class CreateStage(Created):
    type: str = Field(min_length=1, max_length=50, examples=["resize"])
    data: Object
    start_as_waiting: bool = Field(default=False, alias="startAsWaiting")


class CreateTask(Created):
    payload: Object = Field(alias="data")
    max_attempts: int = Field(default=1, alias="maxAttempts", ge=1, le=1_000_000)


class NewPriority(kit.ClosedBody):
    priority: PriorityName


class JobQuery(paging.DatedQuery):
    kind: str | None = Field(default=None, alias="job_name")
    priority: Priority | None = None
    with_stages: bool = Field(default=False, alias="should_return_stages")


class StageQuery(paging.PageQuery):
    flow: kit.Id | None = Field(default=None, alias="job_id")
    type: str | None = Field(default=None, alias="stage_type")
    states: StageStates | None = Field(default=None, alias="stage_operation_status")
    with_tasks: bool = Field(default=False, alias="should_return_tasks")


class TaskQuery(paging.DatedQuery):
    stage: kit.Id | None = Field(default=None, alias="stage_id")
    stage_type: str | None = None
    status: TaskStatus | None = Field(default=None, exclude=True)


def _common_fields(value: Flow | Stage | Task, data: Any) -> Object:
    return {
        "id": value.id, "data": {} if data is None else data,
        "userMetadata": {} if value.metadata is None else value.metadata,
        "traceparent": value.trace or kit.traceparent_of(value.id),
        **({} if value.tracestate is None else {"tracestate": value.tracestate}),
    }  # fmt: skip


def as_job(flow: Flow, stages: list[Stage] | None = None) -> Object:
    completed = flow.succeeded + flow.partial
    return {
        **_common_fields(flow, flow.data), "name": flow.name, "priority": PRIORITIES.name_of(flow.priority),
        "status": JOB_STATES.show(flow, flow.ending), "percentage": completed * 100 // (flow.stages or 1),
        "creationTime": kit.iso_time(flow.created_at), "updateTime": kit.iso_time(flow.updated_at),
        **({} if stages is None else {"stages": [as_stage(stage) for stage in stages]}),
    }  # fmt: skip


def as_stage(stage: Stage, tasks: list[Task] | None = None) -> Object:
    n = stage.counts
    summary = {
        "pending": max(0, n.queued - n.retried), "inProgress": n.held, "completed": n.succeeded, "total": n.total,
        "failed": n.done - n.succeeded, "created": n.blocked + n.waiting_input, "retried": n.retried,
    }  # fmt: skip
    return {
        **_common_fields(stage, stage.data), "jobId": stage.flow_id, "type": stage.type, "order": stage.order,
        "status": STAGE_STATES.show(stage, stage.ending), "percentage": n.succeeded * 100 // (n.total or 1),
        "summary": summary, **({} if tasks is None else {"tasks": [as_task(task) for task in tasks]}),
    }  # fmt: skip


def as_task(task: Task) -> Object:
    # Jobnik counts failed attempts, onetray those that were begun.
    last_failed = task.state not in (native.ASSIGNED, native.RUNNING, native.SUCCEEDED)
    return {
        **_common_fields(task, task.payload), "stageId": task.stage_id or task.id, "status": TASK_STATES.show(task),
        "creationTime": kit.iso_time(task.created_at), "updateTime": kit.iso_time(task.updated_at),
        "attempts": task.attempts if last_failed else task.attempts - 1, "maxAttempts": task.max_attempts,
        **({} if task.started_at is None else {"startTime": kit.iso_time(task.started_at)}),
        **({} if task.finished_at is None else {"endTime": kit.iso_time(task.finished_at)}),
    }  # fmt: skip


def done(what: str) -> Object:
    return answers_always("What was done", {"code": f"{what}_SUCCESSFULLY"})


_ANY = {"data": None, "userMetadata": None}
_JOB, _STAGE = as_job(calls.single_flow(SOME_TASK)) | _ANY, as_stage(calls.single_stage(SOME_TASK)) | _ANY
_TASK = as_task(SOME_TASK) | _ANY
answer = partial(kit.answers_with, optional={"tracestate", "stages", "tasks", "startTime", "endTime"})
JOB, JOB_CREATED = answer("The job", _JOB), answer("The job", _JOB, 201)
STAGE, STAGE_CREATED = answer("The stage", _STAGE), answer("The stage", _STAGE, 201)
TASK, TASKS_CREATED = answer("The task", _TASK), answer("The tasks", [_TASK], 201)
SUMMARY = answer("How many tasks are in each state", dict.fromkeys(_STAGE["summary"], 0))
LIST = answer("The list, or a page of it with the total", None)
