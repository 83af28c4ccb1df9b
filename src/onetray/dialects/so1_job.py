"""A job in so1's format: five states, camelCase, ISO times.

Owns the mapping from native jobs. It is data: the lifecycle decides what a job may do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow, Stage
from onetray.domain.lifecycle import (
    ASSIGNED,
    BLOCKED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW,
    FLOW_PAUSED,
    PARTIAL,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.listing import JobStatus
from onetray.domain.task import LogLine, Task
from onetray.engine.api import EngineApi
from onetray.http.json_answers import iso_time

SO1_PENDING, SO1_RUNNING, SO1_SUCCESS, SO1_FAILED, SO1_CANCELLED = (
    "pending", "running", "success", "failed", "cancelled",
)  # fmt: skip
TERMINAL = frozenset({SO1_SUCCESS, SO1_FAILED, SO1_CANCELLED})

_OPEN = (SO1_PENDING, SO1_RUNNING)
STATES: dict[str, tuple[str, str]] = {
    QUEUED: _OPEN,
    ASSIGNED: _OPEN,
    BLOCKED: _OPEN,
    WAITING_INPUT: _OPEN,
    RUNNING: (SO1_RUNNING, SO1_RUNNING),
    SUCCEEDED: (SO1_SUCCESS, SO1_SUCCESS),
    # so1 has no transition from pending to failed: a job that failed before its start is cancelled, with the error.
    FAILED: (SO1_CANCELLED, SO1_FAILED),
    DEAD_LETTERED: (SO1_CANCELLED, SO1_FAILED),
    CANCELLED: (SO1_CANCELLED, SO1_CANCELLED),
    # States of flows only.
    CREATED: _OPEN,
    PENDING: _OPEN,
    WAITING: _OPEN,
    FLOW_PAUSED: _OPEN,
    PARTIAL: (SO1_SUCCESS, SO1_SUCCESS),
}
"""For each native state: so1's state before the job has started, and after."""

USER_LABEL = "so1.userId"
TOKEN_LABEL = "so1.tokenId"
"""The public id of the token that submitted the job: several tokens may have the same name."""
LINES = 1_000
"""Log lines in a job. The stream has all of them."""
_TRACEBACK = "Traceback (most recent call last)"
_PATH = re.compile(
    r"""(?P<url>\b(?!file:)[a-z][a-z\d+.-]{0,20}://[^\s'"<>]*)
    |(?<!\w)[a-z]:[\\/][^\s'"<>|;,()]*                                          # C:\Users\ann
    |\\\\[^\s'"<>|;,()]+                                                    # \\server\share
    |(?:(?<=file://)|(?<![\w/<.]))(?:~[\w.-]*|\.{1,2})?(?:/[\w.@+~%-]+)+/?  # /srv/app, ~/.ssh, ./run.sh
    |(?<![\w./-])\w[\w.-]*(?:/[\w.-]+)+\.[a-z]\w{0,7}\b                      # src/app/main.py""",
    re.VERBOSE | re.IGNORECASE,
)


def find_so1_job(engine: EngineApi, id_: str, namespace: str) -> JobStatus:
    """Read a job's state, without its payload and result."""
    # An invalid id is answered like an unknown one.
    with suppress(NotFound, InvalidInput):
        return engine.job_status(id_, namespace=namespace)
    raise NotFound(f"there is no job {id_[:50]}")


def so1_state(job: JobStatus | Task | Flow) -> str:
    return STATES[job.state][job.started_at is not None]


def as_submitted(job: Task | Flow) -> Task | Flow:
    """Undo what a fast worker may already have changed: the job as it was submitted."""
    if isinstance(job, Flow):
        return job
    return replace(job, state=QUEUED, started_at=None, finished_at=None, result=None, error=None)


def jobs_as_so1(engine: EngineApi, keys: Sequence[int], namespace: str, lines: int = LINES) -> list[dict[str, Any]]:
    """Jobs, newest first, with the first lines of their logs and, if they have ended, their outcome."""
    details = engine.job_details(keys, lines=lines, namespace=namespace)
    return [as_so1(each.job, each.first_started_at, each.stages, each.lines) for each in details]


def as_so1(
    job: Task | Flow, started_at: int | None, stages: Sequence[Stage] = (), lines: Sequence[LogLine] = ()
) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": so1_state(job),
        "createdAt": iso_time(job.created_at),
        # The first start: so1 does not enter `running` again on a retry.
        **({} if started_at is None else {"startedAt": iso_time(started_at)}),
        **({} if job.finished_at is None else {"completedAt": iso_time(job.finished_at)}),
        **_outcome(job, stages),
        "logs": [line_as_so1(line) for line in lines],
        "metadata": _metadata(job),
    }


def _metadata(job: Task | Flow) -> dict[str, Any]:
    labels: Any = job.labels
    return {
        "requestId": job.correlation_id,
        # If a job has too many secrets, its labels are replaced as a whole.
        "userId": labels.get(USER_LABEL) if isinstance(labels, dict) else None,
        "orgId": job.namespace,
        "action": job.kind if isinstance(job, Task) else job.name,
        "inputs": job.payload if isinstance(job, Task) else None,
    }


def lines_of(engine: EngineApi, job: JobStatus, namespace: str, after: int, limit: int) -> Sequence[LogLine]:
    # Only tasks have logs.
    if job.entity == FLOW.entity:
        return ()
    return engine.logs(job.id, namespace=namespace, after=after, limit=limit)


def line_as_so1(line: LogLine) -> dict[str, Any]:
    return {"line": line.line, "cursor": line.cursor}


def outcome(engine: EngineApi, job: JobStatus, namespace: str) -> dict[str, Any]:
    """`output` of a successful job, `error` of a failed or cancelled one, nothing while it is open."""
    if so1_state(job) not in TERMINAL:
        return {}
    return _outcome(*(
        (engine.task(job.id, namespace=namespace), ()) if job.entity == TASK.entity
        else (engine.flow(job.id, namespace=namespace), engine.stages(job.id, namespace=namespace))
    ))  # fmt: skip


def _outcome(job: Task | Flow, stages: Sequence[Stage]) -> dict[str, Any]:
    state = so1_state(job)
    if state == SO1_SUCCESS:
        return {"output": job.result if isinstance(job, Task) else {stage.name: stage.result for stage in stages}}
    return {"error": _error(job.error)} if state in TERMINAL and job.error is not None else {}


def _error(error: Any) -> dict[str, str]:
    """The error's class and message, without stack trace and paths."""
    facts = error if isinstance(error, dict) else {"message": error}
    message = str(facts.get("message") or "").partition(_TRACEBACK)[0].strip()
    return {"code": str(facts.get("class") or "Error"), "message": without_paths(message)}


def without_paths(message: str) -> str:
    """Replaces file paths in a message. URLs stay."""
    return _PATH.sub(lambda match: match["url"] or "<path>", message)
