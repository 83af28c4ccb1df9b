"""Rows of the log of events, and what events show of the entities that they are about.

A statement declares its row type in its .sql file; see rows.py.
"""

from __future__ import annotations

from typing import NamedTuple


class EventBatch(NamedTuple):
    """A row of the log."""

    id: int
    size: int
    ts: int
    ns: int | None
    type: str
    was: str | None
    state: str | None
    actor: str | None
    entity: int | None
    job: int | None
    version: int | None
    fence: int | None
    attempts: int | None
    cause: str | None
    trace: str | None
    payload: str | None
    varied: str | None


class EntityEventRow(NamedTuple):
    """An event of an entity, and the row of the log that contains it."""

    event: int
    id: int
    size: int
    ts: int
    ns: int | None
    type: str
    was: str | None
    state: str | None
    actor: str | None
    entity: int | None
    job: int | None
    version: int | None
    fence: int | None
    attempts: int | None
    cause: str | None
    trace: str | None
    payload: str | None
    varied: str | None


class TaskEventRow(NamedTuple):
    """An event of a task, the row of the log that contains it, and what it shows of the task."""

    event: int
    id: int
    size: int
    ts: int
    ns: int | None
    type: str
    was: str | None
    state: str | None
    actor: str | None
    entity: int | None
    job: int | None
    version: int | None
    fence: int | None
    attempts: int | None
    cause: str | None
    trace: str | None
    payload: str | None
    varied: str | None
    correlation_id: str | None
    task_trace: str | None
    flow_id: str | None


class EventEntityRow(NamedTuple):
    """What an event shows of the task, stage or flow that it is about."""

    key: int
    id: str
    correlation_id: str
    trace: str | None
    kind: int
    """0 for a stage."""


class CorrelatedRow(NamedTuple):
    """A job with a correlation id."""

    key: int
    is_flow: int
