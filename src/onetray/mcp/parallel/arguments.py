"""The arguments of the parallel-mcp tools. Their names are those of its clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from onetray.config import Limits
from onetray.domain.checks import alias_text
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import POLICY_BOUNDS
from onetray.mcp.arguments import Arguments
from onetray.remote.value_codec import micros

MAX_ATTEMPTS = int(POLICY_BOUNDS["max_attempts"][1])
"""Stands for no limit, which a task has by default."""
MAX_MS = int(POLICY_BOUNDS["backoff_max_s"][1]) * 1000
LIMITS = Limits()
RunStatus = Literal["pending", "active", "waiting", "completed", "failed", "cancelled"]


def _time(text: object) -> int:
    if not isinstance(text, str):
        raise ValueError("send a time such as 2026-01-31T12:00:00Z, as text")
    try:
        return micros(text)
    except (ValueError, OverflowError) as e:
        raise ValueError(f"{text[:50]!r} is not a time ({e}): send one such as 2026-01-31T12:00:00Z") from None


def _printable(text: str) -> str:
    try:
        return alias_text(text, "it", LIMITS)
    except InvalidInput as e:
        raise ValueError(str(e)) from None


Time = Annotated[
    int,
    BeforeValidator(_time),
    WithJsonSchema({"type": "string", "format": "date-time", "description": "Such as 2026-01-31T12:00:00Z."}),
]
"""Sent as ISO 8601, used as microseconds since the epoch."""
Ms = Annotated[int, Field(ge=1, le=MAX_MS, description="Milliseconds.")]
Id = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Ids = Annotated[list[Id], Field(max_length=500)]
Names = Annotated[list[str], Field(max_length=500)]
RunId = Annotated[Id, Field(description="The id of the run.")]
TaskId = Annotated[Id, Field(description="The id of the task.")]
OwnId = Annotated[Id, Field(description="An id of your own, unique in all your runs, tasks and snapshots.")]
Reason = Annotated[str, Field(description="Why, for its history.")]
Token = Annotated[Id, Field(description="A text of your own: the same call with it returns the same result again.")]
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**31 - 1)]


class CreateRun(Arguments):
    id: OwnId | None = None
    namespace: str = Field(default="default", description="A label that list_runs filters by.")
    externalId: str | None = Field(default=None, description="The id of the run in another system.")
    metadata: Any = None
    context: Any = Field(default=None, description="The first snapshot of the context.")


class Retry(Arguments):
    delayMs: Ms | None = None
    backoff: Literal["fixed", "exponential"] = "fixed"
    maxDelayMs: Ms | None = None


class EnqueueTask(Arguments):
    runId: RunId
    kind: str = Field(description="The type of the task. Workers may claim only certain kinds.")
    id: OwnId | None = None
    key: str | None = Field(default=None, description="A name that no other task of the run may have.")
    priority: int = Field(default=0, ge=-(2**31) + 1, le=2**31 - 1, description="Higher ones are claimed first.")
    maxAttempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS, description="By default there is no limit.")
    retry: Retry | None = Field(default=None, description="How long it waits before the next attempt.")
    timeoutMs: Ms | None = Field(default=None, description="How long an attempt may run.")
    input: Any = None
    metadata: Any = None
    contextSnapshotId: Id | None = Field(default=None, description="By default the run's current snapshot.")
    dependsOnTaskIds: Ids = Field(default=[], description="Tasks of the run that must be completed first.")


class ClaimNextTask(Arguments):
    workerId: str = Field(description="Your name as a worker, the same in every call about the task.")
    leaseMs: Ms | None = Field(default=None, description="How long the task is yours without a heartbeat.")
    kinds: Names = Field(default=[], description="Only these kinds. Default: all.")
    clientToken: Token | None = None


class Leased(Arguments):
    """A task that the caller has claimed."""

    taskId: TaskId
    leaseId: str = Field(min_length=1, max_length=200, description="The id of the lease that the claim returned.")
    workerId: str = Field(description="The worker that claimed it.")


class HeartbeatLease(Leased):
    leaseMs: Ms | None = Field(default=None, description="The new length of the lease, from now. Default: as before.")


class PauseTask(Leased):
    status: Literal["blocked", "waiting_input"]
    reason: Reason | None = None


class ReleaseTask(Leased):
    reason: Reason | None = None


class CompleteTask(Leased):
    output: Any = None
    metadata: Any = Field(default=None, description="Replaces the metadata of the task.")
    nextContext: Any = Field(default=None, description="The next snapshot of the run's context.")
    nextContextLabel: str | None = None
    clientToken: Token | None = None


class FailTask(Leased):
    error: str
    metadata: Any = Field(default=None, description="Replaces the metadata of the task.")
    clientToken: Token | None = None


class OfTask(Arguments):
    taskId: TaskId


class OfRun(Arguments):
    runId: RunId


class CancelRun(OfRun):
    reason: Reason | None = None


class RequeueDeadTask(OfTask):
    resetAttempts: bool = Field(default=True, description="Whether it gets all its attempts again.")
    notBefore: Time | None = None
    reason: Reason | None = None


class ExpireLeases(Arguments):
    now: Time | None = Field(default=None, description="The time to assume. One in the future needs the scope admin.")


class AppendContextSnapshot(OfRun):
    payload: Any
    id: OwnId | None = None
    taskId: Id | None = Field(default=None, description="The task that it comes from.")
    scope: Literal["run", "task"] = Field(default="run", description="run: it becomes the run's current snapshot.")
    parentSnapshotId: Id | None = Field(default=None, description="By default the run's current snapshot.")
    label: str | None = None


class ListRuns(Arguments):
    namespace: str | None = None
    statuses: list[RunStatus] = Field(default=[], max_length=6)
    externalId: str | None = None
    updatedAfter: Time | None = None
    updatedBefore: Time | None = None
    limit: Limit = 100
    offset: Offset = 0
    orderBy: Literal["updated_at", "created_at"] = "updated_at"
    orderDir: Literal["desc", "asc"] = "desc"


class ListPendingTasks(Arguments):
    runId: RunId | None = None
    kinds: Names = Field(default=[])
    readyBy: Time | None = None
    limit: Limit = 100


class ListEventsSince(Arguments):
    afterId: int = Field(default=0, ge=0, le=2**62, description="The nextCursor of the previous page.")
    runId: RunId | None = None
    eventTypes: Names = Field(default=[])
    limit: Limit = 200


class ListDeadTasks(Arguments):
    runId: RunId | None = None
    kinds: Names = Field(default=[])
    limit: Limit = 100
    offset: Offset = 0


class PruneRuns(Arguments):
    olderThan: Time
    statuses: list[RunStatus] = Field(default=[], max_length=6)
    limit: int = Field(default=500, ge=1, le=10_000)
