"""Why a job failed, or has not ended yet, as the error that its submitter gets."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onetray.domain.errors import JobFailed, NotFound, NotYet, OnetrayError, error_line
from onetray.domain.flow import Flow, FlowError, decisive_error, message_of_error, stages_failed
from onetray.domain.task import Task, value_of
from onetray.engine.api import EngineApi

if TYPE_CHECKING:
    from onetray.app.job import Job


def job_failed(engine: EngineApi, job: Task | Flow) -> JobFailed:
    """The error for a job that has ended without a result: which task of which stage failed, and how."""
    return _flow_failed(engine, job) if isinstance(job, Flow) else _task_failed(job)


def not_ended_yet(job: Job[Any], state: str, timeout_s: float | None) -> NotYet:
    """The error for a job that has not ended in time, with the first reason if it does not run."""
    why = ""
    with suppress(OnetrayError):
        why = "".join([f": {reason.message}" for reason in job.explain()][:1])
    return NotYet(f"job {job.id} is still {state} after {timeout_s} s{why}", job=job.id, timeout_s=timeout_s)


def _task_failed(task: Task) -> JobFailed:
    error = value_of(task.error)
    why = f": {error_line(error)}" if error is not None else ""
    return JobFailed(
        f"job {task.id} is {task.state}{why}", job=task.id, state=task.state, error=error, task=task.id, stage=None,
        **_class_and_message(error),
    )  # fmt: skip


def _flow_failed(engine: EngineApi, flow: Flow) -> JobFailed:
    own = value_of(flow.error)
    found = None
    if message_of_error(own) == stages_failed(flow.failed, flow.stages):
        found = decisive_error(engine.stages(flow.id, namespace=flow.namespace))
    error = own if found is None else _error_of_task(engine, found, flow.namespace)
    where = "" if found is None else f": {_place(found)}"
    why = "" if error is None else f": {error_line(error)}"
    task, stage = (None, None) if found is None else (found.task, found.stage)
    return JobFailed(
        f"job {flow.id} is {flow.state}{where}{why}", job=flow.id, state=flow.state, error=own, task=task, stage=stage,
        **_class_and_message(error),
    )  # fmt: skip


def _place(error: FlowError) -> str:
    if error.task is None:
        return f"stage {error.stage!r}"
    return f"task {error.name or error.task} of stage {error.stage!r}"


def _error_of_task(engine: EngineApi, found: FlowError, namespace: str) -> Any:
    """The whole error of the task that failed. The stage has only its message, and of a long one the beginning."""
    if found.task is not None:
        try:
            error = value_of(engine.task(found.task, namespace=namespace).error)
        except NotFound:
            error = None
        if error is not None:
            return error
    return {"message": found.message}


def _class_and_message(error: Any) -> dict[str, Any]:
    if not isinstance(error, dict):
        return {"error_class": None, "error_message": None if error is None else str(error)}
    return {"error_class": error.get("class"), "error_message": error.get("message")}
