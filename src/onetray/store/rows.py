"""Rows that the engine decides from, each with a field for every column, in the order of its SELECT.

A statement names its row type in its .sql file (`-- row: TaskRow`); `row_types.py` compares the two when the files are
loaded. Rows that are only shown are in `shown_rows.py`. None of them is a public value.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskRow(NamedTuple):
    """A task as it stands, read under its lock."""

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
    """A flow as it stands, read under its lock. The defaults are those of a new flow."""

    key: int
    ns: int
    kind: int
    id: str
    state: str
    version: int
    roll_up: str
    sealed: int
    started_at: int | None = None
    current: int | None = None
    ending: str | None = None
    ending_how: str | None = None
    ending_why: str | None = None
    ending_by: str | None = None
    stages: int = 0
    stages_open: int = 0
    succeeded: int = 0
    partial: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    ignored: int = 0
    chained: int = 0
    """Whether a task of it depends on another."""
    amends: int = 0
    """Whether a stage of it declares how it is compensated."""
    context: int | None = None
    compensates: int | None = None
    correlation_id: str = ""
    trace: str | None = None
    seen_at: int = 0


class StageRow(NamedTuple):
    """A stage as it stands, read under its flow's lock. The defaults are those of a new stage."""

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
    started_at: int | None = None
    opened_to: int | None = None
    opened_at: int | None = None
    due_at: int | None = None
    ending: str | None = None
    ending_why: str | None = None
    deciding: int | None = None
    conditional: int = 0
    total: int = 0
    open: int = 0
    blocked: int = 0
    waiting_input: int = 0
    succeeded: int = 0
    partly: int = 0
    failed: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    redriven: int = 0
    collect: str = ""
    metrics: str | None = None

    @property
    def stalled(self) -> bool:
        """Whether all that is open waits for somebody."""
        return 0 < self.open == self.blocked + self.waiting_input


class ClaimedRow(NamedTuple):
    """A claimable task, locked by a claim. Sorted by rank and key: the order in which a queue hands out its tasks."""

    rank: int
    key: int
    id: str
    kind: int
    policy: int
    version: int
    fence: int
    attempts: int
    payload: str
    input: str | None
    correlation_id: str | None
    trace: str | None
    job: int
    seen_at: int


class ReclaimedRow(NamedTuple):
    """A task that a repeated claim has claimed before."""

    key: int
    id: str
    kind: int
    policy: int
    fence: int
    attempts: int
    payload: str
    input: str | None
    correlation_id: str | None
    trace: str | None
    lease: int | None
    state: str
    queue: int
    job: int


class ReadyRow(NamedTuple):
    """Where the ready row of a task is."""

    key: int
    queue: int
    rank: int
    kind: int


class LeaseRow(NamedTuple):
    key: int
    tasks: str
    expires_at: int
    length: int


class RenewedRow(NamedTuple):
    """A lease that was renewed."""

    key: int
    expires_at: int
    tasks: str


class DueRow(NamedTuple):
    at: int
    task: int
    what: str
    fence: int


class KeyRow(NamedTuple):
    """What the id of a task, a stage or a flow stands for: its key, and its job's."""

    id: str
    key: int
    job: int


class KeyHolderRow(NamedTuple):
    """An idempotency key or a unique key, and the job that has it. A job that was pruned has no id."""

    kind: int
    key: str
    job: int
    body_hash: str
    finished_at: int | None
    id: str | None
    state: str
    fence: int
    version: int
    single: int
    """Whether the job is a single task."""


class OutcomeRow(NamedTuple):
    """An event of one attempt."""

    type: str
    state: str
    fence: int
    payload: str | None


class LetterFactsRow(NamedTuple):
    """What a dead letter needs to know of its task."""

    key: int
    id: str
    correlation_id: str | None
    trace: str | None
    payload: str


class TaskToCopy(NamedTuple):
    """What a redrive or a retry makes a new task from."""

    key: int
    id: str
    queue: int
    kind: int
    policy: int
    priority: int
    max_attempts: int
    correlation_id: str | None
    trace: str | None
    payload: str
    name: str | None
    spawned_by: int | None


class StageToCopy(NamedTuple):
    """What a retry of a flow makes a new stage from."""

    key: int
    ord: int
    name: str
    state: str
    on_failure: str
    sealed: int
    takes_more: int
    gate: int
    collect: str
    condition: str | None
    compensate: str | None
    approval: str | None
    data: str
    metadata: str | None
    result: str | None
    metrics: str | None
    succeeded: int
    carried_from: int | None


class FlowToCopy(NamedTuple):
    """What a retry makes a new flow from."""

    ns: int
    kind: int
    roll_up: str
    sealed: int
    correlation_id: str
    trace: str | None
    data: str
    metadata: str | None
    context: str | None
    deadline_us: int | None
    compensates: int | None
    compensation: int | None


class CarriedStageRow(NamedTuple):
    """A stage from which another was carried over."""

    key: int
    carried_from: int | None
    gate: int
    condition: str | None
    compensate: str | None


class StageSpecsRow(NamedTuple):
    """What was declared about a stage, and what was answered, as JSON."""

    condition: str | None
    approval: str | None
    answer: str | None


class CompensationRow(NamedTuple):
    """A stage that has something to undo."""

    id: str
    name: str
    compensate: str
    result: str | None


class MemberRow(NamedTuple):
    """A task of a stage."""

    key: int
    stage: int
    id: str
    name: str | None
    state: str


class NamedMemberRow(NamedTuple):
    """A task of a flow that another one names."""

    key: int
    name: str | None
    id: str
    state: str
    ord: int


class SuccessorRow(NamedTuple):
    """A task that was made in the place of another."""

    key: int
    retry_of: int
    name: str | None


class DependentRow(NamedTuple):
    """A task that depends on another. The id is that of the other."""

    needs: int
    task: int
    id: str


class BreakerRow(NamedTuple):
    """The breaker of a kind, read under its lock."""

    kind: int
    recent: str
    opened_at: int | None
    open_until: int | None
    probing: int
    why: str | None
    opened_by: str | None


class RequestRow(NamedTuple):
    """A request to a server under a key of its caller's."""

    route: str
    body_hash: str
    status: int | None
    answer: str | None
    began_at: int


class QueueRow(NamedTuple):
    key: int
    ns: int
    name: str


class KindRow(NamedTuple):
    key: int
    ns: int
    name: str
    policy: int
