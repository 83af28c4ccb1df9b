"""Rows that a redrive or a retry copies: the columns of the old task, stage or flow that the new one gets."""

from __future__ import annotations

from typing import NamedTuple


class TaskToCopy(NamedTuple):
    """The columns that a redrive or a retry copies to a new task."""

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
    metadata: str | None
    tracestate: str | None
    context: int | None
    idempotency_key: str | None


class StageToCopy(NamedTuple):
    """The columns that a retry of a flow copies to a new stage."""

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
    type: str | None
    trace: str | None
    tracestate: str | None


class FlowToCopy(NamedTuple):
    """The columns that a retry copies to a new flow."""

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
    priority: int
    tracestate: str | None


class CarriedStageRow(NamedTuple):
    """The origin of a carried-over stage."""

    key: int
    carried_from: int | None
    gate: int
    condition: str | None
    compensate: str | None


class SuccessorRow(NamedTuple):
    """A task that replaces another one of its stage."""

    key: int
    retry_of: int
    name: str | None
