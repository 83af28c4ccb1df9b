"""Jobs, stages and tasks in Jobnik's words: what its clients send, and what they get."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import FailFast, Field

from onetray.dialects.calls import single_flow, single_stage
from onetray.dialects.jobnik.states import JOB_STATES, RETRIED, STAGE_STATES, TASK_STATES
from onetray.dialects.kit import ClosedBody, answers_with
from onetray.dialects.paging import PageQuery
from onetray.domain import lifecycle as native
from onetray.domain.flow import Counts, Flow, Stage
from onetray.domain.task import Task
from onetray.http.json_answers import iso_time
from onetray.http.openapi.examples import TASK as SOME_TASK
from onetray.http.schemas.base import ID, TRACEPARENT

PRIORITIES = {"VERY_HIGH": 20, "HIGH": 10, "MEDIUM": 0, "LOW": -10, "VERY_LOW": -20}
S = TypeVar("S")
Id = Annotated[str, Field(pattern=ID)]
Object = dict[str, Any]
Priority = Literal["VERY_HIGH", "HIGH", "MEDIUM", "LOW", "VERY_LOW"]
StageStatus = Literal["CREATED", "WAITING", "PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED"]
TaskStatus = Literal["CREATED", "PENDING", "IN_PROGRESS", "RETRIED", "COMPLETED", "FAILED"]


class Created(ClosedBody):
    """What every new job, stage and task has."""

    data: Object
    userMetadata: Object = Field(default_factory=dict)
    traceparent: str | None = Field(None, pattern=TRACEPARENT)
    tracestate: str | None = Field(None, max_length=512)

    @property
    def shared(self) -> dict[str, Any]:
        return {"metadata": self.userMetadata, "trace": self.traceparent, "tracestate": self.tracestate}


class CreateJob(Created):
    name: str = Field(min_length=2, max_length=50, examples=["thumbnails"])
    priority: Priority = "MEDIUM"


class CreateStage(Created):
    type: str = Field(min_length=1, max_length=50, examples=["resize"])
    startAsWaiting: bool = False


class CreateTask(Created):
    maxAttempts: int = Field(1, ge=1, le=1_000_000)


CreateTasks = Annotated[list[CreateTask], FailFast(), Field(min_length=1)]


class SetStatus(ClosedBody, Generic[S]):
    status: S


class NewPriority(ClosedBody):
    priority: Priority


class DatedQuery(PageQuery):
    from_date: datetime | None = None
    end_date: datetime | None = None

    @property
    def times(self) -> dict[str, int]:
        """Dates without a time zone are in UTC."""
        given = (("since", self.from_date), ("until", self.end_date))
        dates = {name: at if at.tzinfo else at.replace(tzinfo=UTC) for name, at in given if at is not None}
        return {name: max(0, int(at.timestamp() * 1e6)) for name, at in dates.items()}


class JobQuery(DatedQuery):
    job_name: str | None = None
    priority: Priority | None = None
    should_return_stages: bool = False


class StageQuery(PageQuery):
    job_id: Id | None = None
    stage_type: str | None = None
    stage_operation_status: StageStatus | None = None
    should_return_tasks: bool = False

    @property
    def states(self) -> list[str]:
        return [state for state, shown in STAGE_STATES.items() if shown == self.stage_operation_status]


class TaskQuery(DatedQuery):
    stage_id: Id | None = None
    stage_type: str | None = None
    status: TaskStatus | None = None

    @property
    def filters(self) -> dict[str, Any]:
        status = "PENDING" if self.status == RETRIED else self.status
        states = [state for state, shown in TASK_STATES.items() if shown == status]
        attempted = self.status == RETRIED if status == "PENDING" else None
        return {"stage_type": self.stage_type, "states": states, "attempted": attempted}


def priority_name(priority: int) -> str:
    """The name of a priority. Native jobs may have any: theirs is that of the next lower one."""
    return next((name for name, value in PRIORITIES.items() if priority >= value), "VERY_LOW")


def job_state(flow: Flow) -> str:
    state = flow.ending or flow.state
    return "PENDING" if state == native.WAITING and flow.started_at is None else JOB_STATES[state]


def task_state(task: Task) -> str:
    return RETRIED if task.state == native.QUEUED and task.attempts else TASK_STATES[task.state]


def _common_fields(value: Flow | Stage | Task, data: Any) -> dict[str, Any]:
    hex_ = value.id.replace("-", "")
    return {
        "id": value.id,
        "data": {} if data is None else data,
        "userMetadata": {} if value.metadata is None else value.metadata,
        # Jobnik's always have one. This one is made of the id, so that it stays the same.
        "traceparent": value.trace or f"00-{hex_}-{hex_[16:]}-01",
        **({} if value.tracestate is None else {"tracestate": value.tracestate}),
    }


def _times(value: Flow | Task) -> dict[str, str]:
    return {"creationTime": iso_time(value.created_at), "updateTime": iso_time(value.updated_at)}


def as_job(flow: Flow, stages: list[Stage] | None = None) -> dict[str, Any]:
    completed = flow.succeeded + flow.partial
    return {
        **_common_fields(flow, flow.data), "name": flow.name, "status": job_state(flow), **_times(flow),
        "priority": priority_name(flow.priority), "percentage": completed * 100 // flow.stages if flow.stages else 0,
        **({} if stages is None else {"stages": [as_stage(stage) for stage in stages]}),
    }  # fmt: skip


def as_stage(stage: Stage, tasks: list[Task] | None = None) -> dict[str, Any]:
    done, total = stage.counts.succeeded, stage.counts.total
    return {
        **_common_fields(stage, stage.data), "jobId": stage.flow_id, "type": stage.type, "order": stage.order,
        "status": STAGE_STATES[stage.ending or stage.state], "percentage": done * 100 // total if total else 0,
        "summary": as_summary(stage.counts), **({} if tasks is None else {"tasks": [as_task(task) for task in tasks]}),
    }  # fmt: skip


def as_summary(counts: Counts) -> dict[str, int]:
    return {
        "pending": max(0, counts.queued - counts.retried), "inProgress": counts.held, "completed": counts.succeeded,
        "failed": counts.failed + counts.dead_lettered + counts.cancelled + counts.redriven,
        "created": counts.blocked + counts.waiting_input, "retried": counts.retried, "total": counts.total,
    }  # fmt: skip


def as_task(task: Task) -> dict[str, Any]:
    # Jobnik counts failed attempts, onetray those that were begun.
    last_failed = task.state not in (native.ASSIGNED, native.RUNNING, native.SUCCEEDED)
    return {
        **_common_fields(task, task.payload), **_times(task), "stageId": task.stage_id or task.id,
        "status": task_state(task),
        "attempts": task.attempts if last_failed else task.attempts - 1, "maxAttempts": task.max_attempts,
        **({} if task.started_at is None else {"startTime": iso_time(task.started_at)}),
        **({} if task.finished_at is None else {"endTime": iso_time(task.finished_at)}),
    }  # fmt: skip


def as_tasks(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    return [as_task(task) for task in tasks]


_OPTIONAL = {"tracestate", "stages", "tasks", "startTime", "endTime"}
_TASK, _STAGE, _JOB = (
    {**shown, "data": None, "userMetadata": None}
    for shown in (as_task(SOME_TASK), as_stage(single_stage(SOME_TASK)), as_job(single_flow(SOME_TASK)))
)
JOB, JOB_CREATED = (answers_with("The job", _JOB, status, _OPTIONAL) for status in (200, 201))
STAGE, STAGE_CREATED = (answers_with("The stage", _STAGE, status, _OPTIONAL) for status in (200, 201))
TASK, TASKS_CREATED = (
    answers_with("The task", _TASK, 200, _OPTIONAL),
    answers_with("The tasks", [_TASK], 201, _OPTIONAL),
)
SUMMARY = answers_with("How many tasks are in each state", as_summary(Counts()))
DONE = answers_with("What was done", {"code": "JOB_MODIFIED_SUCCESSFULLY"})
LIST = answers_with("The list, or a page of it with the total", None)
