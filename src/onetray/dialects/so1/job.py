"""A job in so1's format, and its stream: five states, camelCase, ISO times, `status` and `log` events.

Owns the mapping from native jobs, and the stream's cursor: the last line and the last state that were sent. States
follow from the job itself, so a client that reconnects gets those it missed, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from onetray.dialects import kit
from onetray.domain import lifecycle as native
from onetray.domain.commands import Submit
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Flow
from onetray.domain.listing import JobDetails, JobStatus
from onetray.domain.task import LogLine, Receipt, Task, Written
from onetray.engine.api import EngineApi

PENDING, RUNNING, SUCCESS, FAILED, CANCELLED = "pending", "running", "success", "failed", "cancelled"
TERMINAL = frozenset({SUCCESS, FAILED, CANCELLED})
TRANSITIONS = kit.read_transitions("new → pending → running, cancelled", "running → success, failed, cancelled")

_OPEN = (
    native.QUEUED, native.ASSIGNED, native.BLOCKED, native.WAITING_INPUT, native.CREATED, native.PENDING,
    native.WAITING, native.FLOW_PAUSED,
)  # fmt: skip
STATES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_OPEN, (PENDING, RUNNING)),
    native.RUNNING: (RUNNING, RUNNING),
    **dict.fromkeys((native.SUCCEEDED, native.PARTIAL), (SUCCESS, SUCCESS)),
    # so1 has no transition from pending to failed: a job that failed before its start is cancelled, with the error.
    **dict.fromkeys((native.FAILED, native.DEAD_LETTERED), (CANCELLED, FAILED)),
    native.CANCELLED: (CANCELLED, CANCELLED),
}
"""For each native state: so1's state before the job has started, and after."""

TABLES = tuple(
    kit.StateTable(
        machine.entity, {state: STATES[state] for state in machine.states}, TRANSITIONS, second_after=("start",),
        departures={(PENDING, SUCCESS): why},
    )
    for machine, why in (
        (native.TASK, "a task of a flow that was carried over from an earlier one; a job never is"),
        (native.FLOW, "all stages of the flow were skipped"),
    )
)  # fmt: skip

USER_LABEL = "so1.userId"
TOKEN_LABEL = "so1.tokenId"
"""The public id of the token that submitted the job: several tokens may have the same name."""
LINES = 1_000
"""Log lines in a job. The stream has all of them."""
EXAMPLE = {
    "id": "019a8c3e-5b1f-7c20-9a51-3f4e8d2b6a70", "state": SUCCESS, "createdAt": "2026-11-16T09:30:00.000000Z",
    "startedAt": "2026-11-16T09:30:01.000000Z", "completedAt": "2026-11-16T09:30:02.000000Z", "output": None,
    "error": {"code": "ValueError", "message": "no such site"}, "logs": [{"line": "deploying", "cursor": 1}],
    "metadata": {"requestId": None, "userId": None, "orgId": "default", "action": "deploy", "inputs": None},
}  # fmt: skip
"""A job with all its fields. A failed one has no output, a successful one no error."""
OPTIONAL = frozenset(EXAMPLE) - {"id", "state"}
"""Fields that not all jobs have, or that the scope of a token does not cover."""
PAGE = 100
"""Log lines per read of a stream."""
_CURSOR = re.compile(rf"(\d{{1,18}})(?:\.({'|'.join((PENDING, RUNNING, *sorted(TERMINAL)))}))?")


def so1_state(job: JobStatus | Task | Flow) -> str:
    return STATES[job.state][job.started_at is not None]


def jobs_as_so1(engine: EngineApi, keys: Sequence[int], namespace: str, lines: int = LINES) -> list[dict[str, Any]]:
    """Jobs, newest first, with the first lines of their logs and, if they have ended, their outcome."""
    return [as_so1(details) for details in engine.job_details(keys, lines=lines, namespace=namespace)]


def new_job_as_so1(task: Task) -> dict[str, Any]:
    """The job as it was submitted, even if a fast worker has already changed it."""
    new = replace(task, state=native.QUEUED, started_at=None, finished_at=None, result=None, error=None)
    return as_so1(JobDetails.of(new, [], [], None))


def submitted_as_so1(command: Submit, receipt: Receipt, written: Written) -> dict[str, Any]:
    """The same without a read, for an action that redacts nothing: the inputs as they were sent."""
    user, inputs = (command.labels or {}).get(USER_LABEL), orjson.Fragment(command.payload_json)
    return {
        "id": receipt.id, "state": PENDING, "createdAt": kit.iso_time(written.created_at), "logs": [],
        "metadata": _metadata(command.correlation_id or receipt.id, user, command.namespace, command.kind, inputs),
    }  # fmt: skip


def _metadata(request: str | None, user: str | None, org: str, action: str, inputs: Any) -> dict[str, Any]:
    return {"requestId": request, "userId": user, "orgId": org, "action": action, "inputs": inputs}


def as_so1(details: JobDetails) -> dict[str, Any]:
    job = details.job
    action, inputs = (job.kind, job.payload) if isinstance(job, Task) else (job.name, None)
    labels: Any = job.labels
    # If a job has too many secrets, its labels are replaced as a whole.
    user = labels.get(USER_LABEL) if isinstance(labels, dict) else None
    # The first start: so1 does not enter `running` again on a retry.
    times = {"createdAt": job.created_at, "startedAt": details.first_started_at, "completedAt": job.finished_at}
    return {
        "id": job.id,
        "state": so1_state(job),
        **{name: kit.iso_time(time) for name, time in times.items() if time is not None},
        **outcome(details),
        "logs": [line_as_so1(line) for line in details.lines],
        "metadata": _metadata(job.correlation_id, user, job.namespace, action, inputs),
    }


def line_as_so1(line: LogLine) -> dict[str, Any]:
    return {"line": line.line, "cursor": line.cursor}


def outcome(details: JobDetails) -> dict[str, Any]:
    """`output` of a successful job, `error` of a failed or cancelled one, nothing while it is open."""
    job, state = details.job, so1_state(details.job)
    if state == SUCCESS:
        return {"output": job.result if isinstance(job, Task) else {each.name: each.result for each in details.stages}}
    return {"error": kit.without_internals(job.error)} if state in TERMINAL and job.error is not None else {}


class Seen(NamedTuple):
    """What a client has received: lines up to this one, and this state last."""

    line: int = 0
    state: str | None = None

    @classmethod
    def of(cls, text: str) -> Seen:
        """Parses a line number, or a status id, which also has the state. A line implies `running`."""
        match = _CURSOR.fullmatch(text)
        if not match:
            raise InvalidInput("cursor must be the cursor of a log line, or an id of this stream", field="cursor")
        number = int(match[1])
        return cls(number, match[2] or (RUNNING if number else None))


def read_so1_changes(engine: EngineApi, id_: str, namespace: str, given: Seen | None) -> kit.Changes[Seen | None]:
    """Read what the client has not seen. The job is read before its lines: an ended job has no later ones.

    A client that connects without a cursor (None) after the job's end receives only the final status.
    """
    job, seen = kit.find_job(engine, id_, namespace), given or Seen()
    state = so1_state(job)
    ended = state in TERMINAL
    parts = []
    if first := _before_lines(job, state, seen.state):
        seen = seen._replace(state=first)
        parts.append(kit.frame("status", {"state": first}, f"{seen.line}.{first}"))
    # Only tasks have logs. Lines of an attempt that was lost before it started wait for the next one.
    has_lines = job.entity == native.TASK.entity and state != PENDING and not (given is None and ended)
    lines = engine.logs(job.id, namespace=namespace, after=seen.line, limit=PAGE) if has_lines else []
    for line in lines:
        seen = seen._replace(line=line.cursor)
        parts.append(kit.frame("log", line_as_so1(line), line.cursor))
    more = len(lines) == PAGE
    if ended and not more and seen.state != state:
        seen = seen._replace(state=state)
        for details in engine.job_details([job.key], lines=0, namespace=namespace):
            parts.append(kit.frame("status", {"state": state, **outcome(details)}, f"{seen.line}.{state}"))
    return kit.Changes(b"".join(parts), seen, ended and not more, more)


def _before_lines(job: JobStatus, state: str, seen: str | None) -> str | None:
    """The state to send before any lines: the current one to a new client, `running` to one that has seen pending."""
    if seen is None:
        return None if state in TERMINAL else state
    return RUNNING if seen == PENDING and job.started_at is not None else None
