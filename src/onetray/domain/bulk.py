"""Bulk operations: one action on all jobs that match filters, or a redrive of all dead letters that match.

Owns the actions with their filters and options, the command for each job, and the values that describe an operation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onetray.domain.commands import Cancel, Command, Redrive, SetPriority
from onetray.domain.flow_commands import CancelFlow, RetryFlow, SetFlowPriority
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, PARTIAL, TASK
from onetray.domain.listing import DeadLetterSummary, JobSummary

CANCEL, RETRY, REDRIVE, PRIORITY = "cancel", "retry", "redrive", "priority"
ACTIONS = (CANCEL, RETRY, REDRIVE, PRIORITY)
RUNNING, PAUSED, DONE, STOPPED = BULK_STATES = ("running", "paused", "done", "stopped")
OPEN = tuple(dict.fromkeys((*TASK.open_states, *FLOW.open_states)))
NOT_SUCCEEDED = (FAILED, DEAD_LETTERED, PARTIAL, CANCELLED)
DEFAULT_STATES = {CANCEL: OPEN, RETRY: NOT_SUCCEEDED, PRIORITY: OPEN}
"""The states of the jobs to act on, unless the filters name others."""
JOB_FILTERS = (
    "states", "kind", "queue", "correlation_id", "labels", "entity", "priority", "since", "until", "text", "ids",
)  # fmt: skip
LETTER_FILTERS = ("kind", "reason", "error", "queue", "kinds", "flow", "alike", "ids")
MAX_CANARY = 1_000


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """How to act on each job."""

    hard: bool = False
    """Whether a cancel revokes leases at once."""
    priority: int | None = None
    """The priority to set."""
    delay_s: float = 0.0
    """How long redriven tasks wait before they can be claimed."""
    keep_attempts: bool = False
    """Whether the attempts of a dead letter count against the budget of the new task."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that the engine has refused to act on, and why."""

    id: str
    error: str


@dataclass(frozen=True, slots=True)
class BulkOperation:
    """A bulk operation, and how far it is."""

    id: str
    namespace: str
    action: str
    filters: dict[str, Any]
    options: BulkOptions
    reason: str | None
    state: str
    """`running`, `paused` after its canary, `done` or `stopped`."""
    created_at: int
    created_by: str
    updated_at: int
    finished_at: int | None
    limit: int | None
    """How many jobs it changes at most."""
    canary: int | None
    """How many dead letters it redrives before it pauses."""
    done: int
    """How many jobs it has changed."""
    repeated: int
    """How many were retried, redriven or changed before."""
    refused: int
    skipped: int
    """How many dead letters it has left out because their flows have ended."""
    refusals: list[Refusal]
    """The first refused jobs."""
    canary_ids: list[str] = field(default_factory=list)
    """The new tasks of the canary."""
    canary_states: dict[str, int] = field(default_factory=dict)
    """How many tasks of the canary are in each state. Only `engine.bulk` counts them."""


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """What a bulk operation would act on now."""

    count: int
    more: bool
    """Whether there are more than `count`: the search has ended early."""
    jobs: list[JobSummary]
    """The first ones, newest first."""
    letters: list[DeadLetterSummary]
    """The first dead letters of a redrive, oldest first."""


def command_for(action: str, job: JobSummary, options: BulkOptions, **fields: Any) -> Command:
    """The command of an action for one job. `fields`: namespace, actor and cause."""
    is_flow = job.entity == FLOW.entity
    if action == CANCEL:
        hard = options.hard
        return CancelFlow(job.id, hard=hard, **fields) if is_flow else Cancel(task=job.id, hard=hard, **fields)
    if action == PRIORITY:
        priority = options.priority
        assert priority is not None
        if is_flow:
            return SetFlowPriority(job.id, priority=priority, **fields)
        return SetPriority(task=job.id, priority=priority, **fields)
    return RetryFlow(job.id, **fields) if is_flow else Redrive(task=job.id, **fields)


def redrive_command(letter: DeadLetterSummary, options: BulkOptions, **fields: Any) -> Command:
    return Redrive(task=letter.id, delay_s=options.delay_s, keep_attempts=options.keep_attempts, **fields)


def belongs_to_ended_flow(letter: DeadLetterSummary) -> bool:
    """A bulk redrive leaves such a letter out: it would retry its whole flow. Retry the flow instead."""
    return letter.flow_finished_at is not None
