"""Public values about tasks: tasks, assignments, events, dead letters, log lines, answers to commands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from onetray.domain.actions import actions_by_state
from onetray.domain.errors import DEAD_STAGES as DEAD_STAGES
from onetray.domain.errors import REASON_CODES as REASON_CODES
from onetray.domain.errors import InvalidInput, OnetrayError
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import USER
from onetray.domain.policy import Policy

COMPENSATION_FAILED = "compensation_failed"
"""The reason code of every task of a compensation that fails."""
MAX_SPARED = 5
"""How often in a row a prefetched task whose lease expired before it started gets its attempt back."""


class RawJson(bytes):
    """Encoded JSON text. It is checked, not parsed into objects."""

    @property
    def value(self) -> Any:
        # orjson accepts bytes, but no subclass of it.
        return orjson.loads(bytes(self))


def value_of(value: Any) -> Any:
    """The parsed value of RawJson; any other value as it is."""
    return value.value if isinstance(value, RawJson) else value


def json_of(text: str | None, raw: bool = False) -> Any:
    """The value of a stored JSON text; with raw, the text itself, for callers that only forward it."""
    if text is None or text == "null":
        return None
    return RawJson(text.encode()) if raw else orjson.loads(text)


def lease_text(task: int, fence: int) -> str:
    """The public id of the lease of an attempt. Not its number, which would tell how many claims others make."""
    return f"{fence}-{blake2b(f'{task}:{fence}'.encode(), digest_size=12).hexdigest()}"


def fence_of_lease(lease_id: str, task: int) -> int | None:
    """The fence of the attempt with this lease; None if it is no lease of this task."""
    fence = lease_id.partition("-")[0]
    if not (fence.isascii() and fence.isdigit() and len(fence) < 11) or lease_text(task, int(fence)) != lease_id:
        return None
    return int(fence)


@dataclass(frozen=True, slots=True)
class Task:
    """A task as readers see it."""

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
    payload: Any
    input: Any
    result: Any
    error: dict[str, Any] | None
    policy: Policy
    stage_id: str | None = None
    name: str | None = None
    unmet: int = 0
    control: bool = False
    context_id: str | None = None
    metadata: Any = None
    tracestate: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    """The labels of its job: a member of a flow has those of the flow."""
    alias: str | None = None
    """The id that its submitter has chosen. It follows a redrive."""
    actor: str = USER
    redacts: bool = field(default=True, compare=False)
    """Whether something in it may have to be hidden from readers. Internal."""
    not_now: tuple[str, ...] = ()
    """Actions of its state that the engine would refuse now. Internal."""

    @property
    def lease_id(self) -> str | None:
        """The public id of its lease, while a worker holds it."""
        return None if self.lease is None else lease_text(self.key, self.fence)

    @property
    def actions(self) -> tuple[str, ...]:
        """What the engine would accept now from the reading actor."""
        return tuple(a for a in actions_by_state(TASK.entity, self.state, self.actor) if a not in self.not_now)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log: a transition, or a note, which has no version."""

    id: int
    job_id: str
    entity_id: str
    type: str
    ts: int
    actor: str
    correlation_id: str
    cause: str | None
    trace: str | None
    payload: Any
    version: int | None
    was: str | None
    state: str | None
    fence: int
    attempts: int
    namespace: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that the engine gave up: why, after how many attempts, and the task that replaced it, if any."""

    task_id: str
    created_at: int
    reason_code: str
    stage: str
    last_error: Any
    attempts: int
    last_owner: str | None
    last_lease_expires_at: int | None
    correlation_id: str
    trace_id: str | None
    payload_hash: str
    successor_id: str | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a task's log."""

    cursor: int
    ts: int
    attempt: int
    level: str
    line: str
    data: Any


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The last progress that a task reported."""

    at: int
    attempt: int
    done: float
    total: float | None
    message: str | None


@dataclass(slots=True)
class Assignment:
    """One claimed task: what to run, and the fence and lease that every report about it must name."""

    key: int
    id: str
    kind: str
    queue: str
    namespace: str
    worker: str
    fence: int
    attempt: int
    lease: int
    lease_expires_at: int
    payload_json: str
    input_json: str | None
    correlation_id: str
    trace: str | None
    policy: Policy
    lease_s: float
    """The length of this claim's lease: renew it well before it expires."""
    state: str = "assigned"
    flow: int = 0
    """The key of its flow; 0 for a single task."""
    version: int = 0
    """Its version after the claim, if a success may be written without reading the row first; else 0."""
    ticket: str = ""
    """The ticket that a server has issued with the claim. See `ticket_text`."""
    idempotency_key: str = ""
    """The same on every attempt, retry and redrive: pass it to external systems that must not act twice. The key of the
    submit if that had one, else the id of the first task of the chain. Empty in the answer of an old server."""
    has_slots: bool = False
    """Whether its end gives slots back to limits. False in the answer of a server."""

    @property
    def lease_id(self) -> str:
        """The public id of its lease. A report may name it."""
        return lease_text(self.key, self.fence)

    @property
    def payload(self) -> Any:
        return orjson.loads(self.payload_json)

    @property
    def input(self) -> Any:
        return None if self.input_json is None else orjson.loads(self.input_json)

    @property
    def actions(self) -> tuple[str, ...]:
        return TASK.actions(self.state, "worker")


_TICKET = re.compile(r"([\da-f]{1,16})-([\da-f]{1,16})-([\da-f]{1,16})-([\da-f]{1,8})(?:-([\da-f]{1,8}))?-([\da-f]{8})")
"""Tickets of older versions have no attempt."""


def ticket_text(a: Assignment) -> str:
    """A text of the task's internal numbers, which a client sends back with its reports.

    It is a hint and proves nothing: the engine still checks fence, worker and namespace of the report.
    """
    return f"{a.key:x}-{a.flow:x}-{a.lease:x}-{a.version:x}-{a.attempt:x}-{a.id[-8:]}"


def parse_ticket(text: str, id: str) -> dict[str, int]:
    """The numbers of a ticket, for the task of this id."""
    match = _TICKET.fullmatch(text)
    if match is None or match[6] != id[-8:].lower():
        raise InvalidInput("send the ticket from the claim of this task, or omit it", field="ticket")
    names = ("key", "flow", "lease", "version", "attempt")
    return {name: int(match[i], 16) for i, name in enumerate(names, 1) if match[i] is not None}


class Written(NamedTuple):
    """What the engine has added to a new task."""

    created_at: int
    policy: Policy


class Receipt(NamedTuple):
    """The answer to an accepted command: the task's state, fence and version after it."""

    id: str | None
    state: str
    fence: int
    version: int
    actor: str = USER
    repeated: bool = False
    window: str | None = None
    """Of a submit that returns an earlier job: `debounced` if it has replaced its payload, `throttled` if not."""
    written: Written | None = None
    """Of a new task, if its submit asks for it. Internal."""
    not_now: tuple[str, ...] = ()
    """Actions of its state that the engine would refuse now. Internal."""

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(a for a in actions_by_state(TASK.entity, self.state, self.actor) if a not in self.not_now)


class Holding(NamedTuple):
    """A task that a worker holds, for the answer to its heartbeat."""

    key: int
    id: str
    lease: int | None
    cancel_at: int | None
    state: str


class Beaten(NamedTuple):
    """The answer to a heartbeat: the lease's new expiry, the tasks to cancel and the tasks that are lost."""

    lease_expires_at: int
    cancel: tuple[str, ...]
    lost: tuple[str, ...]


class Verdict(NamedTuple):
    """The answer to one command of a batch: a value or an error."""

    value: Any = None
    error: OnetrayError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason why a job does not run, or how it ended: its code, who holds it, and when it ends (None: unknown)."""

    code: str
    message: str
    held_by: str | None = None
    ends_at: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
