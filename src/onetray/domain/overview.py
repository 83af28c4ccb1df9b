"""What an overview of a namespace shows: statistics by time, queues, workers, and what waits for a person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from onetray.domain.task import Event


@dataclass(frozen=True, slots=True)
class StatisticsBucket:
    """What happened to tasks within a span of time. Its times are None if no task ended in it."""

    at: int
    """When it begins."""
    submitted: int = 0
    started: int = 0
    """Attempts."""
    succeeded: int = 0
    failed: int = 0
    """Including those that were late."""
    dead_lettered: int = 0
    cancelled: int = 0
    retried: int = 0
    """Failed attempts after which the task was retried."""
    lease_expired: int = 0
    queue_p50_s: float | None = None
    """From the time a task was claimable to its last start."""
    queue_p95_s: float | None = None
    run_p50_s: float | None = None
    """From the last start of a task to its end."""
    run_p95_s: float | None = None
    events: dict[str, int] = field(default_factory=dict)
    """All events by type, also those of flows and stages."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A series for a chart. Counts are exact; times come from a sample of the tasks, and are exact to a tenth."""

    since_at: int
    until_at: int
    bucket_s: int
    """How long each bucket is: whole minutes, or whole hours."""
    buckets: list[StatisticsBucket]
    total: StatisticsBucket
    """All buckets together."""
    is_complete: bool
    """False while no janitor has counted for long: then the last events are missing."""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue, with the numbers of its tasks."""

    name: str
    ready: int
    """Claimable now."""
    delayed: int
    held: int
    """Claimed by a worker, and not started."""
    running: int
    at_least: tuple[str, ...]
    """Which of these numbers are lower bounds: counting ends at some thousand."""
    oldest_ready_at: int | None
    """Since when its oldest claimable task has been claimable."""
    paused_at: int | None
    paused_by: str | None
    paused_why: str | None
    workers: int
    """Live workers that claim from it."""
    missing: str | None
    """Why nobody claims its ready tasks, or those of a kind; None if somebody does."""
    limited: int
    """How many of the ready tasks limits hold back now."""


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker holds."""

    id: str
    kind: str
    queue: str
    state: str
    started_at: int | None


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """A worker, and what it does now."""

    name: str
    status: str
    """`running`, `stopping`, `lost` (its heartbeat is overdue), or `unregistered` (it only claims)."""
    host: str | None
    pid: int | None
    version: str | None
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    """The kinds that it claims; empty means every kind."""
    concurrency: int | None
    held: int
    """The tasks that it has claimed and not ended, running or not."""
    tasks: list[HeldTask]
    """Some of them, those that run the longest first."""
    started_at: int | None
    beat_at: int | None


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """A task or a stage that waits for a person."""

    id: str
    job_id: str
    name: str
    """The kind of a task, the name of a stage."""
    at: int
    """Since when."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a person, of one sort."""

    count: int
    is_more: bool
    """Whether counting has ended at `count`."""
    oldest_at: int | None
    first: list[WaitingItem]
    """The oldest ones."""


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """Ready tasks of a kind that no live worker claims."""

    queue: str
    kind: str
    code: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True)
class NeedsHuman:
    """What does not go on without a person."""

    approvals: Waiting
    """Stages that wait for an approval, and whose turn it is."""
    inputs: Waiting
    """Tasks that wait for an answer."""
    blocked: Waiting
    """Tasks that are paused."""
    dead_letters: Waiting
    """Dead letters that nobody has redriven."""
    missing_workers: list[MissingWorker]
    """Without paused queues."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a namespace now."""

    at: int
    queues: list[QueueOverview]
    workers: list[WorkerOverview]
    needs_human: NeedsHuman


class WaitingEntry(NamedTuple):
    """A stage that a person can approve now, or a task that waits for an answer."""

    entity: str
    """`stage` or `task`."""
    id: str
    job_id: str
    kind: str
    """The name of the flow, or the kind of the task."""
    name: str | None
    """The name of the stage or of the task."""
    at: int
    """Since when."""


class WaitingPage(NamedTuple):
    """What waits for a person, oldest first, and the cursor of the next page; None on the last page."""

    entries: list[WaitingEntry]
    since: int | None
    after: int | None


class AuditPage(NamedTuple):
    """What people have done, newest first, and the cursor of the next page; None on the last page."""

    events: list[Event]
    """One for each action. The type of a redrive is `task.redriven`, of a retry of a flow `flow.retried`."""
    counts: list[int]
    """To how many tasks, stages or flows each action applied. If these are several, its event is that of the first."""
    before: int | None
