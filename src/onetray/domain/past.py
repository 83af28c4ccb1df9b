"""Public values about the past of a job: the job as it was after an event, and its states over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from onetray.domain.flow import Flow, Stage
from onetray.domain.task import Task


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job as it was right after one of its events, rebuilt from the log."""

    event: int
    ts: int
    type: str
    entity: str
    """`task` or `flow`."""
    task: Task | None
    flow: Flow | None
    stages: tuple[Stage, ...] = ()
    """Of a flow: those that it had, in order."""
    tasks: tuple[Task, ...] = ()
    """Of a flow: the first of those that it had, in the order of the stages."""
    cut: bool = False
    """Whether the flow had more tasks."""
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """By the id of a task, a stage or the flow: its fields that the log does not tell. They are empty in the value."""

    @property
    def job(self) -> Task | Flow:
        found = self.task or self.flow
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Interval:
    """The time that a flow, a stage or a task spent in one open state."""

    entity: str
    """`flow`, `stage` or `task`."""
    id: str
    label: str
    """The name of a flow or a stage; the name of a task, or its kind."""
    stage: str | None
    """Of a task of a flow: the id of its stage."""
    state: str
    from_at: int
    until_at: int | None
    """None: it is still in this state."""
    attempt: int | None
    """Of a task that a worker holds: the number of its attempt."""
    worker: str | None
    event: int
    """The event that began it."""
    next_state: str | None
    """The state that followed, also an end; None while it lasts."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The states of a job over time: of the flow, then of each stage and its tasks."""

    entity: str
    """`task` or `flow`."""
    id: str
    from_at: int
    until_at: int | None
    """None: the job is open."""
    now_at: int
    intervals: tuple[Interval, ...]
    cut: bool
    """Whether tasks or intervals are left out because there are too many."""
