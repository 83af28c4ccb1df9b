"""Rows of the statistics, of the overview, and of progress."""

from __future__ import annotations

from typing import NamedTuple


class StatisticCursorRow(NamedTuple):
    """Which part of the log is counted."""

    since: int
    upto: int
    counted_at: int
    removed_at: int


class LogCountRow(NamedTuple):
    """Events of a namespace, a minute and a type."""

    ns: int
    at: int
    type: str
    number: int
    batches: int


class VariedLogRow(NamedTuple):
    """A row of the log whose events differ in their time or their namespace."""

    size: int
    ts: int
    ns: int | None
    type: str
    varied: str | None


class EndedBatchRow(NamedTuple):
    """A row of the log with ends of tasks."""

    ns: int | None
    size: int
    entity: int | None
    varied: str | None


class TaskTimesRow(NamedTuple):
    """When a task was claimable, started and ended."""

    key: int
    ns: int
    claimable_at: int
    started_at: int
    finished_at: int


class StatisticRow(NamedTuple):
    """A number of a slot of a chart."""

    slot: int
    type: str
    bucket: int
    number: int


class QueueCountRow(NamedTuple):
    """A queue with its claimable tasks, counted up to a limit."""

    key: int
    name: str
    paused_at: int | None
    paused_by: str | None
    ready: int
    oldest_ready_at: int | None
    limited: int


class WaitingRow(NamedTuple):
    """A task or a stage that waits for a person."""

    key: int
    id: str
    job_id: str
    kind: str
    name: str | None
    at: int
    is_next: int
    """Whether it can be answered: it is the turn of this stage."""


class ApprovalCountRow(NamedTuple):
    """Among the first stages that wait: how many there are, and how many of them can be answered now."""

    waiting: int
    open: int
    oldest_at: int | None


class HeldTaskRow(NamedTuple):
    """A task that a worker holds."""

    owner: str
    id: str
    kind: str
    queue: str
    state: str
    started_at: int | None


class TaskShareRow(NamedTuple):
    """A single task, and the numbers of the progress that it reported last."""

    id: str
    state: str
    attempts: int
    reported_on: int | None
    """The number of the attempt."""
    done: float | None
    out_of: float | None


class StageShareRow(NamedTuple):
    """How many tasks a stage has. A flow without stages has one row without a stage."""

    flow_id: str
    flow_state: str
    key: int | None
    state: str
    total: int
    open: int
    succeeded: int
