"""Rows that the engine's decisions and percentages need, each with a field for every column, in order.

A statement declares its row type in its .sql file (`-- row: TaskRow`); `row_types.py` compares the two when the files
are loaded. Rows of reads for callers are in `shown_rows.py`. None of them is public.
"""

from __future__ import annotations

from typing import NamedTuple


class TaskRow(NamedTuple):
    """A locked task."""

    key: int
    ns: int
    state: str
    version: int
    fence: int
    owner: str | None
    lease: int | None
    lease_expires_at: int | None
    expiry_counts: int | None
    """Whether the expiry of its lease costs the attempt even if the task was never started."""
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
    """Whether it decides a stage's condition instead of being part of its work."""
    updated_at: int
    lane: int | None
    """The lane that it waits in."""
    slots: str | None
    """The counters of limits in which it is counted while a worker holds it, between commas."""
    seen_at: int
    """When it was read, by the clock of its store."""

    @property
    def line(self) -> int:
        """Where its ready row stands: under its queue, or under minus its lane."""
        return self.queue if self.lane is None else -self.lane


class FlowRow(NamedTuple):
    """A locked flow. The defaults are those of a new flow."""

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
    """Whether one of its tasks depends on another."""
    amends: int = 0
    """Whether one of its stages declares a compensation."""
    context: int | None = None
    compensates: int | None = None
    correlation_id: str = ""
    trace: str | None = None
    priority: int = 0
    deleted_at: int | None = None
    updated_at: int = 0
    seen_at: int = 0


class StageRow(NamedTuple):
    """A stage of a locked flow. The defaults are those of a new stage."""

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
    ending_how: str | None = None
    """How a user cancels this stage alone: hard or soft."""
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
    retrying: int = 0
    collect: str = ""
    metrics: str | None = None
    trace: str | None = None
    error_count: int = 0
    updated_at: int = 0

    @property
    def stalled(self) -> bool:
        """Whether all open tasks are blocked or wait for input."""
        return 0 < self.open == self.blocked + self.waiting_input


class TaskNameRow(NamedTuple):
    """A task, by its key, as readers name it."""

    key: int
    id: str
    name: str | None


class ClaimedRow(NamedTuple):
    """A claimable task, locked by a claim. Rows sort by rank and key: the order of a queue."""

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
    stage: int | None
    control: int
    idempotency_key: str | None
    lane: int | None
    seen_at: int


class TaskTextsRow(NamedTuple):
    """The texts of a task that may be long."""

    key: int
    payload: str
    input: str | None


class ReclaimedRow(NamedTuple):
    """A task of a repeated claim, already claimed the first time."""

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
    idempotency_key: str | None


class ReadyRow(NamedTuple):
    """The position of a task's ready row."""

    key: int
    queue: int
    rank: int
    kind: int


class LeaseNowRow(NamedTuple):
    """The part of a lease that decides about its expiry."""

    key: int
    expires_at: int
    expiry_counts: int


class LeaseRow(NamedTuple):
    key: int
    tasks: str
    expires_at: int
    length: int


class RenewedRow(NamedTuple):
    key: int
    expires_at: int
    tasks: str


class DueRow(NamedTuple):
    at: int
    task: int
    what: str
    fence: int


class KeyRow(NamedTuple):
    """The key of a task, a stage or a flow, and the key of its job."""

    id: str
    key: int
    job: int


class JobToDelete(NamedTuple):
    """A task or a flow that a user deletes."""

    entity: str
    key: int
    id: str
    state: str
    kind: str
    correlation_id: str
    flow_id: str | None


class WindowRow(NamedTuple):
    """A window of debounced or throttled submits, and the job that it names. A pruned job, or none, has no id."""

    kind: int
    mode: str
    key: str
    job: int
    """0 if there is none."""
    opened_at: int
    until_at: int
    replaced: int
    id: str | None
    state: str | None
    fence: int | None
    version: int | None


class KeyHolderRow(NamedTuple):
    """An idempotency key or a unique key, and the job that holds it. A pruned job has no id."""

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


class AliasHolderRow(NamedTuple):
    """An alias and its entity. A new one is not written yet and has no id."""

    ns: int
    alias: str
    entity: str
    key: int
    id: str | None


class OutcomeRow(NamedTuple):
    """An event of one attempt."""

    type: str
    state: str
    fence: int
    payload: str | None


class LetterFactsRow(NamedTuple):
    """The facts of a task for its dead letter."""

    key: int
    id: str
    correlation_id: str | None
    trace: str | None
    payload: str


class MemberOutcomeRow(NamedTuple):
    """How a task of a stage ended."""

    key: int
    id: str
    state: str
    attempts: int
    cancel_at: int | None
    error: str | None
    ended_by: str | None
    """Who cancelled it, if it was cancelled."""


class StageSpecsRow(NamedTuple):
    """The condition and the approval of a stage, and the answer to the approval, as JSON."""

    condition: str | None
    approval: str | None
    answer: str | None


class CompensationRow(NamedTuple):
    """A stage to compensate."""

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


class FlowMemberRow(NamedTuple):
    """A task of a flow, for the fold of its log."""

    key: int
    stage: int
    control: int
    retry_of: int | None
    name: str | None


class NamedMemberRow(NamedTuple):
    """A task of a flow that another one names as its dependency."""

    key: int
    name: str | None
    id: str
    state: str
    ord: int


class DependentRow(NamedTuple):
    """A task that depends on another. The id is that of the other task."""

    needs: int
    task: int
    id: str


class BreakerRow(NamedTuple):
    """The locked breaker of a kind."""

    kind: int
    recent: str
    opened_at: int | None
    open_until: int | None
    probing: int
    why: str | None
    opened_by: str | None


class RequestRow(NamedTuple):
    """An HTTP request with an idempotency key."""

    route: str
    body_hash: str
    status: int | None
    answer: str | None
    began_at: int


class ReservedRow(NamedTuple):
    """A key of a dialect, and the hash of the body that it belongs to."""

    caller: str
    key: str
    body_hash: str


class QueueRow(NamedTuple):
    key: int
    ns: int
    name: str


class NameRow(NamedTuple):
    """A namespace, a queue, a kind or a policy, which has its body for a name: `sort` is their place in this list."""

    sort: int
    key: int
    ns: int
    name: str
    policy: int
    retired_at: int | None
    """Nothing used the kind then: it will be deleted unless a submit takes it back."""


class PlainKindRow(NamedTuple):
    key: int
    retired_at: int | None
