"""cancel_job and redrive_job: end work, and run it again. Both ask for confirmation."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onetray.domain import commands as c
from onetray.domain import flow_commands as f
from onetray.domain.errors import IllegalTransition
from onetray.domain.lifecycle import HELD
from onetray.domain.task import Task
from onetray.domain.token import OPERATE
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import Job, is_over, next_tools, read_job
from onetray.mcp.native.fields import NEXT, STATE, TEXT, Confirm, Id, Seconds, output
from onetray.mcp.registry import Tool


class CancelJob(Arguments):
    id: Id
    reason: str | None = Field(default=None, description="Why, for its history.")
    hard: bool = Field(
        default=False, description="Take it from its worker at once instead of asking the worker to stop."
    )
    confirm: Confirm = False


class RedriveJob(Arguments):
    id: Id
    delay_s: Seconds = Field(default=0.0, description="The earliest start, in seconds from now. Not for flows.")
    reason: str | None = Field(default=None, description="Why, for its history.")
    confirm: Confirm = False


def _would_cancel(call: Call, wanted: CancelJob) -> str:
    job = _open(call, wanted.id)
    held = isinstance(job, Task) and job.state in HELD
    how = "taken from its worker at once" if wanted.hard else "asked to stop, and ended after its grace period"
    effect = f"a worker holds it: it is {how}" if held else "nobody will run it"
    return f"The {_name(job)} is {job.state} and would be cancelled for good ({effect})."


def cancel_job(call: Call, wanted: CancelJob) -> dict[str, Any]:
    job = _open(call, wanted.id)
    verb: Any = c.Cancel if isinstance(job, Task) else f.CancelFlow
    placed = call.run(verb, job.id, hard=wanted.hard, cause=wanted.reason)
    return {"id": job.id, "done": True, "state": placed.state, "next": next_tools(call, placed.state)}


def _would_redrive(call: Call, wanted: RedriveJob) -> str:
    job = _ended(call, wanted)
    what = "from the stage that failed" if not isinstance(job, Task) else "with the same payload"
    return f"The {_name(job)} is {job.state} and would run again {what}, as a new job."


def redrive_job(call: Call, wanted: RedriveJob) -> dict[str, Any]:
    job = _ended(call, wanted)
    if isinstance(job, Task):
        placed = call.run(c.Redrive, job.id, delay_s=wanted.delay_s, cause=wanted.reason)
    else:
        placed = call.run(f.RetryFlow, job.id, cause=wanted.reason)
    return {
        "id": placed.id, "done": True, "retry_of": job.id, "state": placed.state,
        "next": next_tools(call, placed.state),
    }  # fmt: skip


def _open(call: Call, id_: str) -> Job:
    job = read_job(call, id_)
    if is_over(job):
        raise IllegalTransition(f"the job has ended already: it is {job.state}", allowed=call.may("redrive_job"))
    return job


def _ended(call: Call, wanted: RedriveJob) -> Job:
    job = read_job(call, wanted.id)
    if not is_over(job):
        raise IllegalTransition(
            f"the job is {job.state} and has not ended: wait for its end, or cancel it first",
            allowed=call.may("cancel_job"),
        )
    return job


def _name(job: Job) -> str:
    return f"{'task' if isinstance(job, Task) else 'flow'} {job.id} ({job.kind if isinstance(job, Task) else job.name})"


DONE = {"type": "boolean", "description": "false: it waits for your confirmation, and `would` says what it would do."}
TOOLS = (
    Tool(
        name="cancel_job",
        title="Cancel a job",
        description="End an open job for good. Asks for confirmation: pass confirm: true only if the user wants it. "
        "A worker that runs it is asked to stop, and gets its grace period unless hard is true.",
        arguments=CancelJob,
        handler=cancel_job,
        scopes=(OPERATE,),
        output=output(("done",), id=TEXT, done=DONE, would=TEXT, state=STATE, next=NEXT),
        destructive=True,
        confirms=_would_cancel,
    ),
    Tool(
        name="redrive_job",
        title="Run an ended job again",
        description="Run a job that has ended, such as a dead letter, once more: as a new job that is linked to it. "
        "A flow continues from the stage that failed. Asks for confirmation: pass confirm: true only if the user "
        "wants it. Check its error with inspect_job first.",
        arguments=RedriveJob,
        handler=redrive_job,
        scopes=(OPERATE,),
        output=output(("done",), id=TEXT, done=DONE, would=TEXT, retry_of=TEXT, state=STATE, next=NEXT),
        confirms=_would_redrive,
    ),
)
