"""Items of lists: jobs, members of flows, queues, dead letters.

They have no payloads and no results, so that long lists stay small; `JobDetails` and the pages of stages and tasks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from onetray.domain.flow import Flow, Stage
from onetray.domain.task import LogLine, Task


@dataclass(frozen=True, slots=True)
class Alias:
    """An id that a caller has chosen, and the entity that has it."""

    alias: str
    entity: str
    """`task`, `flow` or `context`."""
    id: str
    job_id: str
    """The id of the job that it belongs to: of a single task or a flow its own."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A task of a flow, and another one that it depends on."""

    task_id: str
    needs_id: str
    needs_alias: str | None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A single task or a flow in a list."""

    key: int
    entity: str
    id: str
    namespace: str
    kind: str
    queue: str | None
    """None for a flow: only its tasks have queues."""
    state: str
    attempts: int
    max_attempts: int
    stages: int
    stages_open: int
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    owner: str | None
    correlation_id: str
    priority: int
    ending: str | None = None
    """The state in which a flow will end, while its tasks are being cancelled."""
    alias: str | None = None
    """The id that its submitter has chosen."""


@dataclass(frozen=True, slots=True)
class JobLabel:
    """A label of a job."""

    id: str
    name: str
    value: str


class StagePage(NamedTuple):
    """Stages of any flows, newest first, and the cursor of the next page; None on the last page."""

    stages: list[Stage]
    before: int | None
    total: int | None = None
    """How many match the filters, up to a million; None unless it was requested."""


class TaskPage(NamedTuple):
    """Tasks of any jobs, newest first, and the cursor of the next page; None on the last page."""

    tasks: list[Task]
    before: int | None
    total: int | None = None
    """How many match the filters, up to a million; None unless it was requested."""


class JobPage(NamedTuple):
    """Jobs, newest first, and the cursor of the next page; None on the last page."""

    jobs: list[JobSummary]
    before: int | None
    total: int | None = None
    """How many match the filters, up to a million; None unless it was requested."""


class JobCounts(NamedTuple):
    """How many jobs are in each state, and whether all jobs were counted: a count ends early if it takes too long."""

    states: dict[str, int]
    is_complete: bool


class JobStatus(NamedTuple):
    """The state of a task or a flow, without content from users."""

    entity: str
    id: str
    key: int
    state: str
    queue: str | None
    """None for a flow."""
    started_at: int | None
    actions: tuple[str, ...]
    """What the engine would accept now from a user."""


class JobDetails(NamedTuple):
    """A task with its first log lines, or a flow with its stages."""

    task: Task | None
    flow: Flow | None
    stages: list[Stage]
    """Empty unless the flow succeeded."""
    lines: list[LogLine]
    """The first lines of a task's log."""
    first_started_at: int | None
    """When its first attempt started; `Task.started_at` is the start of the last one."""

    @classmethod
    def of(
        cls, job: Task | Flow, stages: list[Stage], lines: list[LogLine], first_started_at: int | None
    ) -> JobDetails:
        task, flow = (None, job) if isinstance(job, Flow) else (job, None)
        return cls(task, flow, stages, lines, first_started_at)

    @property
    def job(self) -> Task | Flow:
        job = self.task or self.flow
        assert job is not None
        return job

    def with_parts(self, parts: Iterator[Any]) -> JobDetails:
        """A copy with other values: the job, its stages, its lines, in this order."""
        job, stages, lines = next(parts), [next(parts) for _ in self.stages], [next(parts) for _ in self.lines]
        return self.of(job, stages, lines, self.first_started_at)


class Located(NamedTuple):
    """The entity that a full or partial id names."""

    entity: str
    id: str


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """A task of a flow in a list."""

    key: int
    id: str
    stage: str
    name: str | None
    kind: str
    queue: str
    state: str
    attempts: int
    max_attempts: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    owner: str | None
    error: Any


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """A queue, with the numbers of its claimable, delayed and held tasks."""

    name: str
    paused_at: int | None
    paused_by: str | None
    ready: int
    delayed: int
    held: int
    oldest_ready_at: int | None
    """Since when its oldest claimable task has been claimable."""
    limited: int
    """How many of the ready tasks limits hold back now."""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of the same kind, reason and error."""

    kind: str
    reason_code: str
    error_class: str | None
    message: str | None
    """The beginning of the message."""
    count: int
    oldest_at: int
    newest_at: int
    redriven: int
    example_id: str
    """The task of its oldest letter: `dead_lines(alike=…)` lists the letters of the group."""


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter in a list."""

    key: int
    id: str
    kind: str
    reason_code: str
    error_class: str | None
    message: str | None
    attempts: int
    created_at: int
    successor_id: str | None
    flow_id: str | None
    flow_finished_at: int | None


class Prunable(NamedTuple):
    """The numbers of jobs that a prune would delete."""

    tasks: int
    flows: int
