"""A job as so1 knows it: five states, camelCase, ISO times.

Owns the map from native jobs. It is data: what a job may do is the lifecycle's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onetray.engine import Engine
from onetray.errors import NotFound
from onetray.flowmodel import Flow
from onetray.http import shown as door
from onetray.http.wire import iso
from onetray.lifecycle import (
    ASSIGNED,
    BLOCKED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW_PAUSED,
    PARTIAL,
    PENDING,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    WAITING_INPUT,
)
from onetray.model import LogLine, Task

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
    # Nothing goes from pending to failed: what the engine gave up before anybody began is recalled, with the reason.
    FAILED: (SO1_CANCELLED, SO1_FAILED),
    DEAD_LETTERED: (SO1_CANCELLED, SO1_FAILED),
    CANCELLED: (SO1_CANCELLED, SO1_CANCELLED),
    # Those that flows have besides.
    CREATED: _OPEN,
    PENDING: _OPEN,
    WAITING: _OPEN,
    FLOW_PAUSED: _OPEN,
    PARTIAL: (SO1_SUCCESS, SO1_SUCCESS),
}
"""For each native state: what so1 calls it before the job has started, and once it has."""

USER_LABEL = "so1.userId"
TOKEN_LABEL = "so1.tokenId"
"""The public id of the token that submitted the job: names of tokens need not differ."""
LINES = 1_000
"""Lines that a job is shown with. The stream has all of them."""
_TRACEBACK = "Traceback (most recent call last)"
_PATH = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:\\[^\s'\"]+|(?:/[\w.@+-]+){2,}/?)")


def find(engine: Engine, id_: str, namespace: str) -> Task | Flow:
    """A job as it is: for decisions, not for answers."""
    try:
        return engine.task(id_, namespace=namespace)
    except NotFound:
        return engine.flow(id_, namespace=namespace)


def view(engine: Engine, id_: str, namespace: str) -> Task | Flow:
    """A job without what its action hides."""
    return door.shown(engine, find(engine, id_, namespace))


def state_of(job: Task | Flow) -> str:
    return STATES[job.state][job.started_at is not None]


def as_submitted(task: Task | Flow) -> Task | Flow:
    """As it stood when it was submitted: a quick worker may have had it since."""
    if isinstance(task, Flow):
        return task
    return replace(task, state=QUEUED, started_at=None, finished_at=None, result=None, error=None)


def shown(engine: Engine, job: Task | Flow, lines: int = LINES) -> dict[str, Any]:
    """A job with its lines and, if it has ended, its outcome."""
    return {
        "id": job.id,
        "state": state_of(job),
        "createdAt": iso(job.created_at),
        **({} if job.started_at is None else {"startedAt": iso(job.started_at)}),
        **({} if job.finished_at is None else {"completedAt": iso(job.finished_at)}),
        **outcome(engine, job),
        "logs": [line(one) for one in lines_of(engine, job, 0, lines)],
        "metadata": _metadata(job),
    }


def id_and_state(job: Task | Flow) -> dict[str, Any]:
    """What is shown of a job to whoever may not read it."""
    return {"id": job.id, "state": state_of(job)}


def _metadata(job: Task | Flow) -> dict[str, Any]:
    labels: Any = job.labels
    return {
        "requestId": job.correlation_id,
        # Of a job with too many secrets all labels are hidden together.
        "userId": labels.get(USER_LABEL) if isinstance(labels, dict) else None,
        "orgId": job.namespace,
        "action": job.kind if isinstance(job, Task) else job.name,
        "inputs": job.payload if isinstance(job, Task) else None,
    }


def lines_of(engine: Engine, job: Task | Flow, after: int, limit: int) -> Sequence[LogLine]:
    """A flow has no log: its tasks have."""
    if isinstance(job, Flow) or not limit:
        return ()
    return door.shown(engine, engine.logs(job.id, namespace=job.namespace, after=after, limit=limit), job.id)


def line(one: LogLine) -> dict[str, Any]:
    return {"line": one.line, "cursor": one.cursor}


def outcome(engine: Engine, job: Task | Flow) -> dict[str, Any]:
    """`output` of a success, `error` of what ended otherwise."""
    state = state_of(job)
    if state not in TERMINAL:
        return {}
    if state == SO1_SUCCESS:
        return {"output": job.result if isinstance(job, Task) else _given(engine, job)}
    return {} if job.error is None else {"error": _error(job.error)}


def _given(engine: Engine, flow: Flow) -> dict[str, Any]:
    stages = door.shown(engine, engine.stages(flow.id, namespace=flow.namespace))
    return {stage.name: stage.result for stage in stages}


def _error(error: Any) -> dict[str, str]:
    """Its class and its message: no stack trace, no paths of the machine that it happened on."""
    facts = error if isinstance(error, dict) else {"message": error}
    message = str(facts.get("message") or "").partition(_TRACEBACK)[0].strip()
    return {"code": str(facts.get("class") or "Error"), "message": _PATH.sub("<path>", message)}
