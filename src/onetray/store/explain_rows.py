"""Rows of the reads that explain why a task, a stage or a flow does not run, and what can be done with it."""

from __future__ import annotations

from typing import NamedTuple

from onetray.domain.flow import FlowError, message_of_error
from onetray.domain.policy import Policy
from onetray.domain.task import json_of


class TaskFacts(NamedTuple):
    """Everything that may keep a task from running."""

    state: str
    fence: int
    attempts: int
    max_attempts: int
    run_at: int
    created_at: int
    finished_at: int | None
    owner: str | None
    lease_expires_at: int | None
    cancel_at: int | None
    held_by: str | None
    held_why: str | None
    queue: str
    paused_at: int | None
    paused_by: str | None
    policy_body: str
    ready: bool
    due: bool
    last_event: str | None
    last_actor: str | None
    last_cause: str | None
    rescheduled_by: str | None
    rescheduled_why: str | None
    cancel_request: str | None
    key: int
    control: int
    unmet: int
    flow_state: str | None
    flow_ending: str | None
    flow_ending_why: str | None
    stage: str | None
    stage_ord: int | None
    stage_state: str | None
    stage_ending: str | None
    opened_to: int | None
    deciding: int | None
    approval: str | None
    stage_due_at: int | None
    current: str | None
    current_ord: int | None
    current_state: str | None
    flow_paused_by: str | None
    kind: str
    breaker_opened_at: int | None
    breaker_until: int | None
    breaker_probing: int | None
    breaker_why: str | None
    breaker_by: str | None
    error: str | None
    reason_code: str | None
    successor: str | None
    flow: str | None
    id: str
    now: int

    @property
    def policy(self) -> Policy:
        return Policy.from_body(self.policy_body)


class FlowFacts(NamedTuple):
    """Everything that may keep a flow from ending."""

    key: int
    state: str
    ending: str | None
    ending_why: str | None
    stages: int
    stages_open: int
    finished_at: int | None
    current: str | None
    namespace: str
    id: str
    error: str | None


class StageFacts(NamedTuple):
    """Everything that may keep a stage from ending."""

    key: int
    name: str
    ord: int
    state: str
    ending: str | None
    ending_why: str | None
    total: int
    open: int
    paused: int
    deciding: str | None
    approval: str | None
    due_at: int | None
    finished_at: int | None
    current: str | None
    current_state: str | None
    is_current: int
    namespace: str
    job: int
    flow: str
    flow_state: str


class FailedStageRow(NamedTuple):
    """A stage with errors of its own or of its tasks."""

    key: int
    name: str
    state: str
    on_failure: str
    errors: str | None
    error: str | None

    @property
    def all_errors(self) -> tuple[FlowError, ...]:
        """The errors of its tasks or, if there are none, its own, such as a rejection."""
        errors = json_of(self.errors)
        if errors:
            return tuple(FlowError(self.name, **error) for error in errors)
        return () if self.error is None else (FlowError(self.name, None, None, message_of_error(json_of(self.error))),)


class UnmetRow(NamedTuple):
    """A task that another one waits for."""

    id: str
    name: str | None
    state: str


class PausedMemberRow(NamedTuple):
    id: str
    name: str | None
    state: str
    held_by: str | None
    held_why: str | None


class StageKindRow(NamedTuple):
    """A queue and a kind of tasks that wait in a stage."""

    queue: str
    kind: str
    control: int


class WorkerSortRow(NamedTuple):
    """Workers that claim the same."""

    queues: str
    kinds: str
    state: str
    alive: int
    stopped: int
    workers: int
    slots: int
    free: int
    """How many of the workers have a free slot."""
    beat_at: int
    name: str
    seen_at: int


class RunningRow(NamedTuple):
    """A task that a registered worker runs, and what that worker claims."""

    id: str
    kind: str
    started_at: int
    queues: str
    kinds: str


class UnregisteredClaimRow(NamedTuple):
    worker: str
    at: int


class RedriveFacts(NamedTuple):
    """What decides whether an ended task can be redriven."""

    key: int
    state: str
    control: int
    spawned_by: int | None
    job: int
    stage: int | None
    ord: int | None
    stage_state: str | None
    stage_ending: str | None
    redriven: int | None
    opened_at: int | None
    flow_state: str | None
    flow_ending: str | None
    roll_up: str | None
    compensation: int | None
    successor: int | None


class NeedRow(NamedTuple):
    """A task that another one depends on."""

    task: int
    key: int
    stage: int
    state: str


class SpawnerRow(NamedTuple):
    """A task that has spawned another one."""

    key: int
    stage: int
    state: str
    spawned_by: int | None
    cancel_at: int | None
    ord: int
    ended_by: str | None


class RetryFacts(NamedTuple):
    """What decides whether an ended flow can be retried."""

    key: int
    is_taken: int
    has_carried: int
    compensation: int | None


class DebouncedRow(NamedTuple):
    """Until when a debounced job waits, and how many submits have replaced its payload."""

    until_at: int
    replaced: int
