"""Rows of reads for callers, with JSON still as text.

A .sql file can also declare a value of `domain/` as its row type, if that is listed in VALUES.
"""

from __future__ import annotations

from typing import NamedTuple

from onetray.domain.declared_flow import DeclaredFlowSummary
from onetray.domain.flow import Context, MemberReport
from onetray.domain.listing import (
    Alias,
    DeadGroup,
    DeadLetterSummary,
    Dependency,
    JobLabel,
    JobSummary,
    MemberSummary,
    Prunable,
    QueueDepth,
)
from onetray.domain.overview import WaitingItem
from onetray.domain.task import DeadLetter, Holding, LogLine, TaskProgress

VALUES = (
    Alias, Context, DeadGroup, DeadLetter, DeadLetterSummary, DeclaredFlowSummary, Dependency, Holding,
    JobLabel, JobSummary, LogLine, MemberReport, MemberSummary, Prunable, QueueDepth, TaskProgress,
    WaitingItem,
)  # fmt: skip


class TaskDetails(NamedTuple):
    """The columns that become a `Task`."""

    key: int
    id: str
    job_id: str
    namespace: str
    queue: str
    kind: str
    state: str
    version: int
    fence: int
    priority: int
    attempts: int
    max_attempts: int
    created_at: int
    updated_at: int
    run_at: int
    started_at: int | None
    finished_at: int | None
    owner: str | None
    lease: int | None
    lease_expires_at: int | None
    cancel_requested_at: int | None
    held_by: str | None
    held_why: str | None
    retry_of: str | None
    correlation_id: str
    trace: str | None
    payload: str
    input: str | None
    result: str | None
    error: str | None
    policy: str
    stage_id: str | None
    name: str | None
    unmet: int
    control: int
    context_id: str | None
    metadata: str | None
    tracestate: str | None
    labels: str | None
    alias: str | None
    redacts: int


class FlowDetails(NamedTuple):
    """The columns that become a `Flow`."""

    key: int
    id: str
    namespace: str
    name: str
    state: str
    version: int
    roll_up: str
    sealed: int
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    deadline_at: int | None
    ending: str | None
    ending_how: str | None
    current_stage: str | None
    stages: int
    stages_open: int
    succeeded: int
    partial: int
    failed: int
    cancelled: int
    skipped: int
    ignored: int
    retry_of: str | None
    compensates: str | None
    compensation: str | None
    correlation_id: str
    trace: str | None
    tracestate: str | None
    priority: int
    data: str
    metadata: str | None
    error: str | None
    labels: str | None
    alias: str | None
    context_id: str | None


class StageDetails(NamedTuple):
    """The columns that become a `Stage`."""

    key: int
    id: str
    flow_id: str
    namespace: str
    ord: int
    name: str
    state: str
    version: int
    on_failure: str
    sealed: int
    takes_more: int
    created_at: int
    updated_at: int
    started_at: int | None
    finished_at: int | None
    due_at: int | None
    ending: str | None
    ending_how: str | None
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
    retrying: int
    data: str
    metadata: str | None
    result: str | None
    metrics: str | None
    error: str | None
    approval: str | None
    answer: str | None
    carried_from: str | None
    type: str
    trace: str | None
    tracestate: str | None
    error_count: int
    errors: str | None
    opened_at: int | None
    own_ending_how: str | None
    """How a user ends the stage; `ending_how` is that of its flow, if the whole flow is ended."""
    deciding: int | None
    is_current: int
    flow_state: str
    flow_ending: str | None


class HeldInStageRow(NamedTuple):
    """How many tasks of a stage a worker holds, how many of these after a failed attempt, and the progress that they
    have reported, added up."""

    stage: int
    held: int
    retried: int
    progress: float


class IdRow(NamedTuple):
    entity: str
    id: str
    name: str
    state: str


class PlaceRow(NamedTuple):
    """A task of a flow, and the position of its stage."""

    key: int
    job: int
    ord: int


class ResultRow(NamedTuple):
    """The result of a task of a stage."""

    key: int
    id: str
    name: str | None
    state: str
    result: str | None


class NeededResultRow(NamedTuple):
    """The result of a task that another task depends on."""

    id: str
    name: str | None
    result: str | None


class LogRow(NamedTuple):
    """A line of a task's log."""

    task: int
    cursor: int
    ts: int
    attempt: int
    level: str
    line: str
    data: str | None


class WorkerRow(NamedTuple):
    name: str
    host: str
    pid: int
    version: str
    started_at: int
    beat_at: int
    expires_at: int
    concurrency: int
    running: int
    claimed: int
    queues: str
    kinds: str
    state: str
    seen_at: int


class DeclaredFlowRow(NamedTuple):
    name: str
    version: str
    declared_at: int
    declared_by: str
    seen_at: int
    other_version: str | None
    other_seen_at: int | None
    body: str


class BreakerDetails(NamedTuple):
    """The breaker of a kind, and the kind's policy."""

    kind: str
    recent: str
    opened_at: int | None
    open_until: int | None
    probing: int
    why: str | None
    opened_by: str | None
    policy: str
    seen_at: int


class WorkerTasksRow(NamedTuple):
    """The tasks that a worker holds."""

    name: str
    running: int
    claimed: int


class BulkRow(NamedTuple):
    """The columns that become a `BulkOperation`, and where its next step continues."""

    id: str
    ns: int
    namespace: str
    action: str
    filters: str
    options: str
    reason: str | None
    state: str
    created_at: int
    created_by: str
    updated_at: int
    finished_at: int | None
    most: int | None
    canary: int | None
    place: int
    done: int
    repeated: int
    refused: int
    skipped: int
    refusals: str
    canary_ids: str


class ScheduleRow(NamedTuple):
    """A schedule."""

    key: int
    ns: int
    namespace: str
    name: str
    body: str
    version: str
    source: str
    app: str | None
    turn: int
    next_fire_at: int | None
    last_fire_at: int | None
    look_at: int | None
    failures: int
    fires: int
    kept_from: int
    paused_at: int | None
    paused_by: str | None
    paused_why: str | None
    orphaned_at: int | None
    seen_at: int | None
    version_seen_at: int | None
    created_at: int
    created_by: str
    updated_at: int


class ScheduleFireRow(NamedTuple):
    """What a fire time has come to, and the state of its job now."""

    schedule: int
    fire_at: int
    manual: int
    outcome: str
    job_id: str | None
    job_state: str | None
    entity: str | None
    """`task` or `flow`; None if it has no job, or the job is deleted."""
    actor: str
    at: int
    why: str | None
    missed: int


class LetterGroupRow(NamedTuple):
    """What a dead letter has in common with those of its group."""

    ns: int
    kind: int
    reason_code: str
    error_class: str
    pattern: str


class TokenRow(NamedTuple):
    id: str
    name: str
    namespace: str
    scopes: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    used_at: int | None
    hash: str
    member_of: str
    """Its groups, as JSON."""
    seen_at: int


class LogAndProgressRow(NamedTuple):
    """The last log line and the progress of a task: they write no events."""

    key: int
    last_line: int | None
    progress_at: int | None
    done: float | None


class EventCountRow(NamedTuple):
    namespace: str
    type: str
    kind: str | None
    reason: str | None
    number: int


class DurationRow(NamedTuple):
    """A bucket of the histogram of how long tasks waited, or ran."""

    namespace: str
    kind: str
    bucket: int
    number: int
    us: int


class RedactingFlowRow(NamedTuple):
    """A flow that its own policy, or its kind's, redacts."""

    key: int
    policy: int | None
    kind_policy: int


class RedactedTaskRow(NamedTuple):
    """A task that its own policy, or its kind's, redacts, with all fields that may hold its secrets."""

    job: int
    id: str
    policy: int
    kind_policy: int
    payload: str
    input: str | None
    result: str | None
    checkpoint: str | None


class FlowInputRow(NamedTuple):
    """An input of a flow besides those of its tasks: of the flow, of a stage, or a context."""

    job: int
    data: str | None
    metadata: str | None
    answer: str | None
