"""find_jobs and inspect_job: see the state of work."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from onetray.domain.task import Event, LogLine, Task
from onetray.domain.token import READ
from onetray.engine.list_scan import walk_jobs
from onetray.http.json_answers import iso_time, to_json
from onetray.http.params import cursor_at, cursor_position
from onetray.mcp.arguments import Arguments
from onetray.mcp.call import Call
from onetray.mcp.jobs import Job, bounded, job_view, line_of, read_job
from onetray.mcp.native.fields import NEXT, STATE, TEXT, UNTRUSTED, Id, Labels, output
from onetray.mcp.registry import Tool

MAX_JOBS, MAX_LINES = 100, 200
JOBS, EVENTS, LOG = "jobs", "events", "log"


class FindJobs(Arguments):
    states: list[str] = Field(
        default=[],
        max_length=20,
        description="Only jobs in these states: queued, assigned, running, blocked, waiting_input, succeeded, failed, "
        "dead_lettered, cancelled; flows also created, pending, paused, waiting, partial. Empty: any.",
    )
    kind: str | None = Field(default=None, description="Only jobs of this kind, or flows of this name.")
    queue: str | None = Field(default=None, description="Only tasks of this queue.")
    labels: Labels | None = None
    correlation_id: str | None = Field(default=None, description="Only jobs with this correlation id.")
    limit: int = Field(default=20, ge=1, le=MAX_JOBS)
    cursor: str | None = Field(default=None, description="next_cursor of the previous page.")


class InspectJob(Arguments):
    id: Id
    show: list[Literal["explain", "events", "log"]] = Field(
        default=["explain"],
        max_length=3,
        description="explain: why it does not run now. events: its history. log: what its worker wrote.",
    )
    limit: int = Field(
        default=50, ge=1, le=MAX_LINES, description="The maximum of events, and of log lines, in a page."
    )
    events_cursor: str | None = Field(default=None, description="next_events_cursor of the previous page.")
    log_cursor: str | None = Field(default=None, description="next_log_cursor of the previous page.")
    whole: bool = Field(default=False, description="Do not truncate large payloads and results.")


def find_jobs(call: Call, by: FindJobs) -> dict[str, Any]:
    before = cursor_position(JOBS, by.cursor) or None
    filters: dict[str, Any] = {
        "states": by.states, "kind": by.kind, "queue": by.queue, "labels": by.labels,
        "correlation_id": by.correlation_id,
    }  # fmt: skip
    jobs, before = walk_jobs(call.engine, call.namespace, before, by.limit, **filters)
    found: dict[str, Any] = {"jobs": [line_of(job) for job in jobs]}
    if before is not None:
        found["next_cursor"] = cursor_at(JOBS, before)
    return {**found, "next": call.may("inspect_job", "claim_work")}


def inspect_job(call: Call, about: InspectJob) -> dict[str, Any]:
    job = read_job(call, about.id)
    shown = job_view(call, job, whole=about.whole)
    if "explain" in about.show:
        blockers = call.read(call.engine.explain, job.id)
        shown["explain"] = [to_json(blocker) for blocker in blockers]
    if "events" in about.show:
        shown |= events_page(call, job, about.events_cursor, about.limit)
    if "log" in about.show:
        shown |= log_page(call, job, about.log_cursor, about.limit)
    return shown


def events_page(call: Call, job: Job, cursor: str | None, limit: int) -> dict[str, Any]:
    """A page of a job's events, and the cursor of the next one if there is more."""
    read = call.engine.events if isinstance(job, Task) else call.engine.flow_events
    page = call.read(read, job.id, after=cursor_position(EVENTS, cursor), limit=limit)
    return _page("events", EVENTS, [_event(event) for event in page], page[-1].id if len(page) == limit else None)


def log_page(call: Call, job: Job, cursor: str | None, limit: int) -> dict[str, Any]:
    """A page of a task's log. A flow has none: its tasks have."""
    if not isinstance(job, Task):
        return {"log": [], "log_note": "a flow has no log: inspect its tasks"}
    page = call.read(call.engine.logs, job.id, after=cursor_position(LOG, cursor), limit=limit)
    return _page("log", LOG, [_line(line) for line in page], page[-1].cursor if len(page) == limit else None)


def _page(name: str, cursor: str, items: list[Any], last: int | None) -> dict[str, Any]:
    return {name: items} if last is None else {name: items, f"next_{name}_cursor": cursor_at(cursor, last)}


def _event(event: Event) -> dict[str, Any]:
    told = {
        "id": event.id, "at": iso_time(event.ts), "type": event.type, "entity": event.entity_id, "by": event.actor,
        "state": event.state, "untrusted": None if event.payload in (None, {}) else bounded(event.payload),
        "cause": event.cause,
    }  # fmt: skip
    return {name: value for name, value in told.items() if value is not None}


def _line(line: LogLine) -> dict[str, Any]:
    told = {"at": iso_time(line.ts), "attempt": line.attempt, "level": line.level, "untrusted": line.line}
    return told if line.data is None else {**told, "untrusted_data": bounded(line.data)}


TOOLS = (
    Tool(
        name="find_jobs",
        title="Find jobs",
        description="List jobs, newest first, by state, kind, queue, labels or correlation id. Returns short lines; "
        "inspect_job shows one whole. Questions that wait for an answer are the jobs in waiting_input.",
        arguments=FindJobs,
        handler=find_jobs,
        scopes=(READ,),
        output=output(("jobs",), jobs={"type": "array"}, next_cursor=TEXT, next=NEXT),
    ),
    Tool(
        name="inspect_job",
        title="Inspect a job",
        description="Show one job: its state, its attempts, who works on it, its progress, its payload and result, the "
        "question it asks and the form of the answer; why it does not run; with show also its history and its log, in "
        "pages.",
        arguments=InspectJob,
        handler=inspect_job,
        scopes=(READ,),
        output=output(("id", "state", "next"), id=TEXT, state=STATE, untrusted=UNTRUSTED, next=NEXT),
    ),
)
