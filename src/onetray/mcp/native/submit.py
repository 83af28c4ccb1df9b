"""submit_job and run_job: have work done."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onetray.domain import commands as c
from onetray.domain.token import READ, SUBMIT
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import is_over, job_outcome, job_view, next_tools
from onetray.mcp.native.fields import NEXT, STATE, TEXT, UNTRUSTED, Labels, Queue, Seconds, output, told_of
from onetray.mcp.registry import Tool
from onetray.mcp.waiting import until_over

WAIT_S, MAX_WAIT_S = 60.0, 3_600.0


class SubmitJob(Arguments):
    kind: str = Field(description="The type of work: it decides which worker takes it, for example 'review'.")
    payload: Any = Field(default=None, description="What the worker needs to know: any JSON.")
    queue: Queue = "default"
    priority: int = Field(default=0, description="Higher ones are taken first.")
    delay_s: Seconds | None = Field(default=None, description="The earliest start, in seconds from now.")
    max_attempts: int | None = Field(default=None, ge=1, description="The maximum of attempts. Default: its kind's.")
    idempotency_key: str | None = Field(
        default=None, description="Your own key: submitting again with the same key returns the same job."
    )
    labels: Labels | None = None
    correlation_id: str | None = Field(default=None, description="Shared by related jobs: find_jobs filters by it.")


class RunJob(SubmitJob):
    wait_s: float = Field(default=WAIT_S, ge=0, le=MAX_WAIT_S, description="How long to wait for the end.")


async def submit_job(call: Call, job: SubmitJob) -> dict[str, Any]:
    receipt = await _submit(call, job)
    return told_of(receipt, receipt.id, next_tools(call, receipt.state))


async def run_job(call: Call, job: RunJob) -> dict[str, Any]:
    receipt = await _submit(call, job)
    found = await until_over(call, receipt.id, job.wait_s)
    if is_over(found):
        return await call.in_thread(job_outcome, call, found)
    return await call.in_thread(job_view, call, found)


async def _begin(call: Call, job: RunJob) -> str:
    return str((await _submit(call, job)).id)


async def _submit(call: Call, job: SubmitJob) -> Any:
    fields = job.model_dump(exclude={"wait_s"}, exclude_none=True)
    return await call.do(c.Submit, **fields)


TOOLS = (
    Tool(
        name="submit_job",
        title="Submit a job",
        description="Put a job into a queue and return at once. Some worker, a program or another agent, will take it. "
        "Use inspect_job with the returned id to check on it. For a result that you need now, use run_job.",
        arguments=SubmitJob,
        handler=submit_job,
        scopes=(SUBMIT,),
        output=output(("id", "state"), id=TEXT, state=STATE, repeated={"type": "boolean"}, next=NEXT),
    ),
    Tool(
        name="run_job",
        title="Run a job and wait for its result",
        description="Submit a job and wait for its end, up to wait_s seconds. Returns its result under `untrusted`, or "
        "its error. If it has not ended by then, or asks a question, the result says so: the job continues, and "
        "inspect_job with its id shows it later. With an idempotency_key, a second call continues to wait for the same "
        "job. Clients with MCP tasks get a task instead of waiting.",
        arguments=RunJob,
        handler=run_job,
        scopes=(SUBMIT, READ),
        output=output(("id", "state"), id=TEXT, state=STATE, untrusted=UNTRUSTED, next=NEXT),
        reports_progress=True,
        as_task=_begin,
    ),
)
