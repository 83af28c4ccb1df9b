"""claim_work, report_progress, finish_work and hand_over: do work."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from onetray.domain import commands as c
from onetray.domain.question import NOTES, left_behind
from onetray.domain.task import Assignment
from onetray.domain.token import WORK
from onetray.http.json_answers import iso_time
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import OF_HOLDER, assignment_view
from onetray.mcp.native.fields import NEXT, STATE, TEXT, Held, Queue, Seconds, claim_of, output, told_of
from onetray.mcp.registry import Tool
from onetray.mcp.waiting import claimed

LEASE_S, MAX_TASKS, MAX_WAIT_S = 300.0, 20, 300.0
"""Agents think longer than programs: their leases are longer by default."""


class ClaimWork(Arguments):
    worker: str = Field(description="Your name as a worker: unique, and the same in every call about this work.")
    queue: Queue = "default"
    kinds: list[str] | None = Field(default=None, max_length=100, description="Only these kinds. Default: all.")
    limit: int = Field(default=1, ge=1, le=MAX_TASKS, description="How many tasks to take. Take what you can do now.")
    lease_s: float = Field(default=LEASE_S, ge=0.001, description="How long the tasks are yours without a report.")
    wait_s: float = Field(default=0.0, ge=0, le=MAX_WAIT_S, description="How long to wait for work if there is none.")
    request_key: str | None = Field(
        default=None, description="Your own key of this claim: repeating it returns the same tasks."
    )


class ReportProgress(Held):
    done: Seconds | None = Field(default=None, description="How much is done, in any unit.")
    total: Seconds | None = Field(default=None, description="How much there is to do, in the same unit.")
    message: str | None = Field(default=None, description="What you are doing, in a few words.")
    log: list[str] = Field(default=[], max_length=100, description="Lines for the log of the task.")
    notes: Any = Field(default=None, description="What the next worker needs to continue, if you fail: any JSON.")
    lease_s: float | None = Field(default=None, ge=0.001, description="The new length of the lease, from now.")


class FinishWork(Held):
    outcome: Literal["succeeded", "failed"]
    result: Any = Field(default=None, description="The result, if it succeeded: any JSON.")
    error: str | None = Field(default=None, description="What went wrong, if it failed.")
    retry: bool | None = Field(
        default=None, description="Whether another attempt makes sense, if it failed. Default: by the job's policy."
    )
    retry_after_s: Seconds | None = Field(default=None, description="How long to wait before another attempt.")

    @model_validator(mode="after")
    def _fits(self) -> FinishWork:
        if self.outcome == "failed" and not self.error:
            raise ValueError("error: say what went wrong")
        if self.outcome == "succeeded" and (self.error is not None or self.retry is not None):
            raise ValueError("error and retry are for outcome failed: leave them out, or report failed")
        if self.outcome == "failed" and self.result is not None:
            raise ValueError("result is for outcome succeeded: describe the failure in error")
        return self


class HandOver(Held):
    notes: Any = Field(default=None, description="What you found out, for whoever takes it next: any JSON.")
    reason: str | None = Field(default=None, description="Why you give it back, for its history.")
    delay_s: Seconds = Field(default=0.0, description="Nobody can claim it for this many seconds.")


async def claim_work(call: Call, wanted: ClaimWork) -> dict[str, Any]:
    # Started in the same transaction: what an agent has taken it works on, so an expired lease counts as an attempt.
    command = call.command(
        c.Claim, worker=wanted.worker, queue=wanted.queue, kinds=None if wanted.kinds is None else tuple(wanted.kinds),
        limit=wanted.limit, lease_s=wanted.lease_s, request_key=wanted.request_key, start=True,
    )  # fmt: skip
    found = await claimed(call, command, wanted.wait_s)
    if found and call.deliver is not None:
        found = await call.deliver(command, found)
    if not found:
        return {"tasks": [], "next": ["claim_work again later, with wait_s to wait for work"]}
    # Only a task that has returned to its queue can have notes.
    notes = await call.in_thread(_notes, call, [a.id for a in found if a.fence > 1]) if _any_again(found) else {}
    return {"tasks": [assignment_view(a, notes.get(a.id)) for a in found], "next": list(OF_HOLDER)}


def _any_again(found: list[Assignment]) -> bool:
    return any(a.fence > 1 for a in found)


def _notes(call: Call, ids: list[str]) -> dict[str, Any]:
    return {id_: _notes_of(call, id_) for id_ in ids}


def _notes_of(call: Call, id_: str) -> Any:
    """The notes of the last worker, unredacted: the next one needs them."""
    return left_behind(call.checkpoint(id_)).get(NOTES)


def report_and_renew(call: Call, report: ReportProgress) -> dict[str, Any]:
    about = claim_of(report)
    commands = [call.command(c.Beat, report.id, lease_s=report.lease_s, **about)]
    if report.done is not None:
        progress = {"done": report.done, "total": report.total, "message": report.message}
        commands.append(call.command(c.Progress, report.id, **progress, **about))
    lines = report.log if report.done is not None or report.message is None else [report.message, *report.log]
    if lines:
        commands.append(call.command(c.Log, report.id, lines=tuple(lines), **about))
    if report.notes is not None:
        commands.append(call.command(c.Checkpoint, report.id, body={NOTES: report.notes}, **about))
    beaten = call.run_all(*commands)[0]
    told: dict[str, Any] = {"id": report.id, "lease_expires_at": iso_time(beaten.lease_expires_at)}
    if report.id.lower() in beaten.cancel:
        told["stop"] = "somebody has cancelled this task: stop, and call hand_over or finish_work"
    return {**told, "next": list(OF_HOLDER)}


async def finish_work(call: Call, report: FinishWork) -> dict[str, Any]:
    about = claim_of(report)
    if report.outcome == "succeeded":
        receipt = await call.do(c.Succeed, report.id, result=report.result, **about)
    else:
        failed = {"message": report.error, "retryable": report.retry, "retry_after_s": report.retry_after_s}
        receipt = await call.do(c.Fail, report.id, error_class="AgentError", **failed, **about)
    return told_of(receipt, report.id, call.may("claim_work"))


def hand_over(call: Call, report: HandOver) -> dict[str, Any]:
    about = claim_of(report)
    commands = [call.command(c.Release, report.id, reason=report.reason, delay_s=report.delay_s, **about)]
    if report.notes is not None:
        commands.insert(0, call.command(c.Checkpoint, report.id, body={NOTES: report.notes}, **about))
    receipt = call.run_all(*commands)[-1]
    return told_of(receipt, report.id, call.may("claim_work", "inspect_job"))


TOOLS = (
    Tool(
        name="claim_work",
        title="Claim work",
        description="Take tasks from a queue, highest priority first. They are yours alone for lease_s seconds: report "
        "within that time. Each has an id and a fence, which your reports must name; its payload, the answer of a "
        "person, and the notes of earlier workers are under `untrusted`. An empty list: there is no work now.",
        arguments=ClaimWork,
        handler=claim_work,
        scopes=(WORK,),
        output=output(("tasks",), tasks={"type": "array", "items": {"type": "object"}}, next=NEXT),
    ),
    Tool(
        name="report_progress",
        title="Report progress and keep the task",
        description="Renew the lease of a claimed task. With done, total and message also report progress; with log "
        "append lines to its log; with notes leave what the next worker needs, in case you fail. `stop` in the result "
        "means that the task was cancelled. LeaseLost means that it is no longer yours: drop it.",
        arguments=ReportProgress,
        handler=report_and_renew,
        scopes=(WORK,),
        output=output(("id", "lease_expires_at"), id=TEXT, lease_expires_at=TEXT, stop=TEXT, next=NEXT),
        idempotent=True,
    ),
    Tool(
        name="finish_work",
        title="Report the outcome",
        description="End a claimed task: succeeded with its result, or failed with the error. A failed task is "
        "retried as its policy determines: its state is then queued. The same report is accepted again; another "
        "one is rejected.",
        arguments=FinishWork,
        handler=finish_work,
        scopes=(WORK,),
        output=output(("id", "state"), id=TEXT, state=STATE, repeated={"type": "boolean"}, next=NEXT),
        idempotent=True,
    ),
    Tool(
        name="hand_over",
        title="Hand a task over",
        description="Give a claimed task back to its queue, with notes for whoever takes it next. It costs no attempt. "
        "Use it when you cannot finish the task but somebody else can.",
        arguments=HandOver,
        handler=hand_over,
        scopes=(WORK,),
        output=output(("id", "state"), id=TEXT, state=STATE, next=NEXT),
    ),
)
