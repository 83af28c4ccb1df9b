"""A job in so1's format: five states, camelCase, ISO times.

Owns the mapping from native jobs. It is data: the lifecycle decides what a job may do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onetray.dialects.kit import without_internals
from onetray.domain import lifecycle as native
from onetray.domain.flow import Flow, Stage
from onetray.domain.listing import JobStatus
from onetray.domain.task import LogLine, Task
from onetray.engine.api import EngineApi
from onetray.http.json_answers import iso_time

PENDING, RUNNING, SUCCESS, FAILED, CANCELLED = "pending", "running", "success", "failed", "cancelled"
TERMINAL = frozenset({SUCCESS, FAILED, CANCELLED})
TRANSITIONS = (
    (None, PENDING), (PENDING, RUNNING), (PENDING, CANCELLED), (RUNNING, SUCCESS), (RUNNING, FAILED),
    (RUNNING, CANCELLED),
)  # fmt: skip

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


def so1_state(job: JobStatus | Task | Flow) -> str:
    return STATES[job.state][job.started_at is not None]


def jobs_as_so1(engine: EngineApi, keys: Sequence[int], namespace: str, lines: int = LINES) -> list[dict[str, Any]]:
    """Jobs, newest first, with the first lines of their logs and, if they have ended, their outcome."""
    details = engine.job_details(keys, lines=lines, namespace=namespace)
    return [as_so1(each.job, each.first_started_at, each.stages, each.lines) for each in details]


def new_job_as_so1(task: Task) -> dict[str, Any]:
    """The job as it was submitted, even if a fast worker has already changed it."""
    return as_so1(replace(task, state=native.QUEUED, started_at=None, finished_at=None, result=None, error=None), None)


def as_so1(
    job: Task | Flow, started_at: int | None, stages: Sequence[Stage] = (), lines: Sequence[LogLine] = ()
) -> dict[str, Any]:
    labels: Any = job.labels
    # The first start: so1 does not enter `running` again on a retry.
    times = {"createdAt": job.created_at, "startedAt": started_at, "completedAt": job.finished_at}
    return {
        "id": job.id,
        "state": so1_state(job),
        **{name: iso_time(time) for name, time in times.items() if time is not None},
        **outcome(job, stages),
        "logs": [line_as_so1(line) for line in lines],
        "metadata": {
            "requestId": job.correlation_id,
            # If a job has too many secrets, its labels are replaced as a whole.
            "userId": labels.get(USER_LABEL) if isinstance(labels, dict) else None,
            "orgId": job.namespace,
            "action": job.kind if isinstance(job, Task) else job.name,
            "inputs": job.payload if isinstance(job, Task) else None,
        },
    }


def line_as_so1(line: LogLine) -> dict[str, Any]:
    return {"line": line.line, "cursor": line.cursor}


def outcome(job: Task | Flow, stages: Sequence[Stage]) -> dict[str, Any]:
    """`output` of a successful job, `error` of a failed or cancelled one, nothing while it is open."""
    state = so1_state(job)
    if state == SUCCESS:
        return {"output": job.result if isinstance(job, Task) else {stage.name: stage.result for stage in stages}}
    return {"error": without_internals(job.error)} if state in TERMINAL and job.error is not None else {}
