"""Rows as the store reads them: what the engine decides from. Not public values.

Each class has one field for each column, in the order of its SELECT.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskRow(NamedTuple):
    """What the engine decides from: a task as it stands, read under its lock."""

    key: int
    ns: int
    state: str
    version: int
    fence: int
    owner: str | None
    lease: int | None
    lease_expires_at: int | None
    attempts: int
    max_attempts: int
    spared: int
    queue: int
    kind: int
    policy: int
    priority: int
    run_at: int
    cancel_at: int | None
    job: int
    stage: int | None
    unmet: int
    """How many of the tasks that it depends on have not succeeded yet."""
    control: int
    """Whether it answers a stage's condition, rather than doing its work."""
    seen_at: int
    """When it was read, by the clock of its store."""


class FlowRow(NamedTuple):
    """What the engine decides from: a flow as it stands, read under its lock."""

    key: int
    ns: int
    kind: int
    id: str
    state: str
    version: int
    roll_up: str
    sealed: int
    started_at: int | None
    current: int | None
    ending: str | None
    ending_how: str | None
    ending_why: str | None
    ending_by: str | None
    stages: int
    stages_open: int
    succeeded: int
    partial: int
    failed: int
    cancelled: int
    skipped: int
    ignored: int
    chained: int
    """Whether a task of it depends on another."""
    amends: int
    """Whether a stage of it declares how it is compensated."""
    context: int | None
    compensates: int | None
    correlation_id: str
    trace: str | None
    seen_at: int


class StageRow(NamedTuple):
    """A stage as it stands, read under its flow's lock."""

    key: int
    job: int
    ns: int
    ord: int
    id: str
    name: str
    state: str
    version: int
    on_failure: str
    sealed: int
    takes_more: int
    gate: int
    started_at: int | None
    opened_to: int | None
    opened_at: int | None
    due_at: int | None
    ending: str | None
    ending_why: str | None
    deciding: int | None
    conditional: int
    total: int
    open: int
    blocked: int
    waiting_input: int
    succeeded: int
    partly: int
    failed: int
    dead_lettered: int
    cancelled: int
    redriven: int
    collect: str
    metrics: str | None

    @property
    def stalled(self) -> bool:
        """Whether all that is open waits for somebody."""
        return 0 < self.open == self.blocked + self.waiting_input
