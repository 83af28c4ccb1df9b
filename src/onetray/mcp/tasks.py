"""MCP tasks (the extension io.modelcontextprotocol/tasks): a job is a task, under the same id.

Owns the map of states. A client that declares the extension gets a task from a tool that may take long; `tasks/get`
reads the job, `tasks/update` answers what it asks, `tasks/cancel` cancels it.
"""

from __future__ import annotations

from typing import Any

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import Forbidden, InvalidInput
from onetray.domain.lifecycle import CANCELLED, PARTIAL, SUCCEEDED, WAITING_INPUT
from onetray.domain.task import Task
from onetray.domain.token import OPERATE, READ
from onetray.http.json_answers import encoded, iso_time
from onetray.mcp.call import Call
from onetray.mcp.jobs import Job, answer_question, is_over, job_outcome, progress_of, question_of, read_job

POLL_MS = 1_000
ANSWER = "answer"
"""Our name of the question that a waiting job asks."""


def task_created(call: Call, id_: str) -> dict[str, Any]:
    """The result of a call that continues as a task. It blocks."""
    return {"resultType": "task", **_facts(read_job(call, id_))}


def get_task(call: Call, id_: str) -> dict[str, Any]:
    """The result of `tasks/get`. It blocks."""
    _must_have(call, READ)
    job = read_job(call, id_)
    task = _facts(job)
    if is_over(job):
        if job.state != CANCELLED:
            task["result"] = _tool_result(call, job)
    elif isinstance(job, Task):
        if job.state == WAITING_INPUT:
            task["inputRequests"] = {ANSWER: _request(call, job)}
        progress = progress_of(call, job)
        if progress is not None:
            task["statusMessage"] = _progress_text(progress)
    return task


def update_task(call: Call, id_: str, answers: Any) -> dict[str, Any]:
    """The result of `tasks/update`: the answer to what the job asks. Answers to other questions are ignored."""
    _must_have(call, OPERATE)
    job = read_job(call, id_)
    answer = answers.get(ANSWER) if isinstance(answers, dict) else None
    if answer is None or job.state != WAITING_INPUT:
        return {}
    if not isinstance(answer, dict) or answer.get("action") != "accept":
        raise InvalidInput("a declined question stays open: answer it, or cancel the task", field="inputResponses")
    answer_question(call, id_, _content(call, job, answer.get("content")))
    return {}


def cancel_task(call: Call, id_: str) -> dict[str, Any]:
    """The result of `tasks/cancel`: the job is asked to stop, as by `cancel_job`. An ended one stays as it is."""
    _must_have(call, OPERATE)
    job = read_job(call, id_)
    if not is_over(job):
        call.run(c.Cancel if isinstance(job, Task) else f.CancelFlow, job.id)
    return {}


def _must_have(call: Call, scope: str) -> None:
    if not call.principal.has(scope):
        raise Forbidden(f"this needs the scope {scope}: use a token that has it", needs=[scope])


def _facts(job: Job) -> dict[str, Any]:
    status = "working"
    if job.state == WAITING_INPUT:
        status = "input_required"
    elif is_over(job):
        # A job that failed is a completed call with an error as its result: `failed` is for errors of the protocol.
        status = "cancelled" if job.state == CANCELLED else "completed"
    return {
        "taskId": job.id, "status": status, "statusMessage": f"the job is {job.state}",
        "createdAt": iso_time(job.created_at), "lastUpdatedAt": iso_time(job.updated_at), "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }  # fmt: skip


def _tool_result(call: Call, job: Job) -> dict[str, Any]:
    told = job_outcome(call, job)
    text = encoded(told)
    return {
        "content": [{"type": "text", "text": text.decode()}], "structuredContent": told,
        "isError": job.state not in (SUCCEEDED, PARTIAL),
    }  # fmt: skip


def _request(call: Call, task: Task) -> dict[str, Any]:
    form = _form(call, task)
    if not _is_object(form):
        form = {"type": "object", "properties": {ANSWER: form}, "required": [ANSWER]}
    asked = {"mode": "form", "message": task.held_why or "", "requestedSchema": form}
    return {"method": "elicitation/create", "params": asked}


def _content(call: Call, task: Job, content: Any) -> Any:
    """The answer in the content of a form: the only field of a form that asks for no object."""
    assert isinstance(task, Task)
    return content if _is_object(_form(call, task)) or not isinstance(content, dict) else content.get(ANSWER)


def _form(call: Call, task: Task) -> dict[str, Any]:
    return (question_of(call, task) or {}).get("form") or {"type": "string"}


def _is_object(form: dict[str, Any]) -> bool:
    return form.get("type") == "object"


def _progress_text(progress: dict[str, Any]) -> str:
    of = f" of {progress['total']:g}" if "total" in progress else ""
    return (
        f"{progress['done']:g}{of}: {progress['message']}" if progress.get("message") else f"{progress['done']:g}{of}"
    )
