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
from onetray.domain.listing import JobSummary
from onetray.domain.task import LogLine, Task
from onetray.engine import Engine
from onetray.engine.job_details import first_lines, first_starts, flows_by_keys, stages_of_flows, tasks_by_keys
from onetray.http import redacted_reads as door
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


def find_so1_job(engine: Engine, id_: str, namespace: str) -> Task | Flow:
    """The job, not redacted: as_so1 and outcome redact it."""
    for read in (engine.task, engine.flow):
        # An invalid id is an unknown one.
        with suppress(NotFound, InvalidInput):
            return read(id_, namespace=namespace)
    raise NotFound(f"there is no job {id_[:50]}")


def find_all(engine: Engine, jobs: Sequence[JobSummary]) -> list[Task | Flow]:
    """The jobs of a page, in order."""
    keys = {entity: [job.key for job in jobs if job.entity == entity] for entity in (TASK.entity, FLOW.entity)}
    found: list[Task | Flow] = [
        *tasks_by_keys(engine.store, keys[TASK.entity]), *flows_by_keys(engine.store, keys[FLOW.entity]),
    ]  # fmt: skip
    return sorted(found, key=lambda job: job.key, reverse=True)


def so1_state(job: Task | Flow) -> str:
    return STATES[job.state][job.started_at is not None]


def as_submitted(task: Task | Flow) -> Task | Flow:
    """The job as it was when submitted: a worker may have finished it since."""
    if isinstance(task, Flow):
        return task
    return replace(task, state=QUEUED, started_at=None, finished_at=None, result=None, error=None)


def as_so1(engine: Engine, jobs: Sequence[Task | Flow], most_lines: int = LINES) -> list[dict[str, Any]]:
    """Jobs with their first log lines and outcome. The number of statements does not depend on the number of jobs."""
    store, tasks = engine.store, [job for job in jobs if isinstance(job, Task)]
    logs = first_lines(store, [task.key for task in tasks], most_lines)
    stages = stages_of_flows(
        store, [job.key for job in jobs if isinstance(job, Flow) and so1_state(job) == SO1_SUCCESS]
    )
    # A task with fence 1 has started at most once.
    starts = first_starts(store, [task.key for task in tasks if task.started_at is not None and task.fence > 1])
    lines = [(one, task.id) for task in tasks for one in logs.get(task.key, ())]
    told: list[Any] = door.redacted(
        engine, [*jobs, *stages, *(one for one, _ in lines)],
        [*(job.id for job in jobs), *(stage.flow_id for stage in stages), *(id_ for _, id_ in lines)],
    )  # fmt: skip
    told_stages, told_lines = told[len(jobs) : len(jobs) + len(stages)], told[len(jobs) + len(stages) :]
    return [
        _one_as_so1(
            job, starts.get(job.key, job.started_at), [stage for stage in told_stages if stage.flow_id == job.id],
            [one for one, (_, id_) in zip(told_lines, lines, strict=True) if id_ == job.id],
        )
        for job in told[: len(jobs)]
    ]  # fmt: skip


def _one_as_so1(
    job: Task | Flow, started_at: int | None, stages: Sequence[Stage], lines: Sequence[LogLine]
) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": so1_state(job),
        "createdAt": iso_time(job.created_at),
        # The first start: so1 does not enter `running` again on a retry.
        **({} if started_at is None else {"startedAt": iso_time(started_at)}),
        **({} if job.finished_at is None else {"completedAt": iso_time(job.finished_at)}),
        **_outcome(job, stages),
        "logs": [line(one) for one in lines],
        "metadata": _metadata(job),
    }


def id_and_state(job: Task | Flow) -> dict[str, Any]:
    """A job for a caller without the scope read."""
    return {"id": job.id, "state": so1_state(job)}


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


def lines_of(engine: Engine, job: Task | Flow, after: int, limit: int) -> Sequence[LogLine]:
    """A flow has no log; its tasks have."""
    if isinstance(job, Flow) or not limit:
        return ()
    return door.redacted(engine, engine.logs(job.id, namespace=job.namespace, after=after, limit=limit), job.id)


def line(one: LogLine) -> dict[str, Any]:
    return {"line": one.line, "cursor": one.cursor}


def outcome(engine: Engine, job: Task | Flow) -> dict[str, Any]:
    """`output` of a success, `error` of any other end, nothing while the job runs."""
    if so1_state(job) not in TERMINAL:
        return {}
    stages = engine.stages(job.id, namespace=job.namespace) if isinstance(job, Flow) else []
    return _outcome(door.redacted(engine, job), door.redacted(engine, stages))


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
    return _PATH.sub(lambda found: found["url"] or "<path>", message)
