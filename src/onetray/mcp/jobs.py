"""Jobs as agents see them: short, with the next tools to call, and with foreign text marked.

Owns the fields of these views. What other people and programs wrote is under `untrusted`: a model must treat it as
data. The notes and the form that agents leave for each other are the task's checkpoint.
"""

from __future__ import annotations

from typing import Any

from onetray.domain import commands as c
from onetray.domain.errors import IllegalTransition, NotFound
from onetray.domain.flow import Flow, Stage, message_of_error
from onetray.domain.lifecycle import FLOW, HELD, PARTIAL, PAUSED, SUCCEEDED, TASK
from onetray.domain.listing import JobSummary
from onetray.domain.question import FORM, check_answer, left_behind
from onetray.domain.task import Assignment, RawJson, Task
from onetray.http.json_answers import encoded, iso_time
from onetray.mcp.call import Call

MAX_SHOWN_BYTES = 20_000
"""Larger values are truncated in views, unless the caller requests the whole."""
SHOWN_CHARS = 2_000
OF_HOLDER = ("report_progress", "finish_work", "hand_over", "ask_human")

Job = Task | Flow


def read_job(call: Call, id_: str) -> Job:
    """A task or a flow. It blocks."""
    try:
        return call.read(call.engine.task, id_, raw=True)
    except NotFound:
        pass
    try:
        return call.read(call.engine.flow, id_, raw=True)
    except NotFound:
        raise NotFound(f"there is no job {id_[:50]} here: find_jobs lists those that there are", job=id_) from None


def is_over(job: Job) -> bool:
    return job.state in (TASK if isinstance(job, Task) else FLOW).terminal


def next_tools(call: Call, state: str) -> list[str]:
    """The tools that make sense for a job in this state, as far as the caller may use them."""
    if state in (*TASK.terminal, *FLOW.terminal):
        return call.may("redrive_job")
    return call.may(*(("answer_human",) if state in PAUSED else ()), "inspect_job", "cancel_job")


def line_of(job: JobSummary) -> dict[str, Any]:
    """A job in a list."""
    line = {
        "id": job.id, "entity": job.entity, "kind": job.kind, "state": job.state, "queue": job.queue,
        "attempts": job.attempts, "worker": job.owner, "created_at": iso_time(job.created_at),
        "finished_at": time_or_none(job.finished_at),
    }  # fmt: skip
    return {name: value for name, value in line.items() if value is not None}


def job_view(call: Call, job: Job, *, whole: bool = False) -> dict[str, Any]:
    """A job: what it is, its state, what it waits for, and its outcome. It blocks."""
    view = _task_view(call, job, whole) if isinstance(job, Task) else _flow_view(call, job, whole)
    return {**_without_none(view), "next": next_tools(call, job.state)}


def _task_view(call: Call, task: Task, whole: bool) -> dict[str, Any]:
    untrusted = {
        "payload": task.payload, "input": task.input, "result": task.result, "error": task.error,
        "metadata": task.metadata, "labels": task.labels or None,
    }  # fmt: skip
    return {
        "id": task.id, "entity": TASK.entity, "kind": task.kind, "queue": task.queue, "state": task.state,
        "job_id": None if task.job_id == task.id else task.job_id, "name": task.name, "priority": task.priority,
        "attempts": f"{task.attempts} of {task.max_attempts}", "created_at": iso_time(task.created_at),
        "run_at": iso_time(task.run_at) if task.state not in TASK.terminal else None,
        "started_at": time_or_none(task.started_at), "finished_at": time_or_none(task.finished_at),
        "worker": task.owner, "lease_expires_at": time_or_none(task.lease_expires_at),
        "cancel_requested": True if task.cancel_requested_at is not None else None, "retry_of": task.retry_of,
        "correlation_id": None if task.correlation_id == task.id else task.correlation_id,
        "progress": progress_of(call, task), "question": question_of(call, task),
        "untrusted": bounded_fields(untrusted, whole),
    }  # fmt: skip


def _flow_view(call: Call, flow: Flow, whole: bool) -> dict[str, Any]:
    stages = call.read(call.engine.stages, flow.id, raw=True)
    results = {stage.name: stage.result for stage in stages if stage.result is not None}
    untrusted = {
        "data": flow.data, "results": results or None, "error": flow.error, "metadata": flow.metadata,
        "labels": flow.labels or None,
    }  # fmt: skip
    return {
        "id": flow.id, "entity": FLOW.entity, "kind": flow.name, "state": flow.state, "priority": flow.priority,
        "created_at": iso_time(flow.created_at), "started_at": time_or_none(flow.started_at),
        "finished_at": time_or_none(flow.finished_at), "retry_of": flow.retry_of, "current_stage": flow.current_stage,
        "stages": [_stage_line(stage) for stage in stages], "untrusted": bounded_fields(untrusted, whole),
    }  # fmt: skip


def _stage_line(stage: Stage) -> dict[str, Any]:
    counts = stage.counts
    line = {
        "id": stage.id, "name": stage.name, "state": stage.state, "tasks": counts.total,
        "succeeded": counts.succeeded, "failed": counts.failed + counts.dead_lettered or None,
        "waiting_input": counts.waiting_input or None,
    }  # fmt: skip
    return _without_none(line)


def progress_of(call: Call, task: Task) -> dict[str, Any] | None:
    if task.state not in HELD:
        return None
    progress = call.read(call.engine.progress_of, task.id)
    if progress is None:
        return None
    return _without_none({"done": progress.done, "total": progress.total, "message": progress.message})


def question_of(call: Call, task: Task) -> dict[str, Any] | None:
    """What a paused task waits for: who is to answer, the question, and the form of the answer."""
    if task.state not in PAUSED:
        return None
    left = left_behind(call.read(call.engine.last_checkpoint, task.id))
    return _without_none({"to": task.held_by, "untrusted": task.held_why, "form": left.get(FORM)})


def answer_question(call: Call, id_: str, answer: Any) -> Any:
    """Resume a paused task with an answer that satisfies its form. It blocks."""
    task = read_job(call, id_)
    if not isinstance(task, Task) or task.state not in PAUSED:
        raise IllegalTransition(
            f"{id_} is {task.state} and asks nothing: only a job in waiting_input or blocked accepts an answer",
            allowed=list(task.actions),
        )
    # Not redacted: the form decides, it is not shown.
    check_answer(call.checkpoint(task.id), answer)
    return call.run(c.Resume, task.id, input=answer)


def assignment_view(a: Assignment, notes: Any) -> dict[str, Any]:
    """A claimed task, with all of its payload."""
    untrusted = {
        "payload": RawJson(a.payload_json.encode()),
        "answer": None if a.input_json is None else RawJson(a.input_json.encode()),
        "notes": notes,
    }
    return {
        "id": a.id, "kind": a.kind, "fence": a.fence, "attempt": f"{a.attempt} of {a.policy.max_attempts}",
        "lease_s": a.lease_s, "lease_expires_at": iso_time(a.lease_expires_at), "untrusted": _without_none(untrusted),
    }  # fmt: skip


def job_outcome(call: Call, job: Job) -> dict[str, Any]:
    """What came of an ended job, with all of its result. It blocks."""
    told: dict[str, Any] = {"id": job.id, "state": job.state}
    if job.state not in (SUCCEEDED, PARTIAL):
        told["error"] = None if job.error is None else {"untrusted": message_of_error(job.error)}
    elif isinstance(job, Task):
        told["untrusted"] = {"result": job.result}
    else:
        stages = call.read(call.engine.stages, job.id, raw=True)
        told["untrusted"] = {"results": {stage.name: stage.result for stage in stages}}
    return {**_without_none(told), "next": next_tools(call, job.state)}


def bounded_fields(fields: dict[str, Any], whole: bool) -> dict[str, Any] | None:
    shown = {name: value if whole else bounded(value) for name, value in fields.items() if value is not None}
    return shown or None


def bounded(value: Any) -> Any:
    """The value, or its beginning if it is large."""
    text = encoded(value)
    if len(text) <= MAX_SHOWN_BYTES:
        return value
    return {"cut": f"{len(text):,} bytes of JSON; whole: true shows all", "begins": text.decode()[:SHOWN_CHARS]}


def time_or_none(at: int | None) -> str | None:
    return None if at is None else iso_time(at)


def _without_none(view: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in view.items() if value is not None}
