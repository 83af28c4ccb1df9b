"""The values that go in and come out: tasks, events, dead letters, log lines, answers.

Owns their shape. Knows no SQL and changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from onetray.domain.errors import InvalidInput, OnetrayError
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import USER
from onetray.domain.policy import Policy

REASON_CODES = (
    "parse_error",
    "validation_failed",
    "dependency_unavailable",
    "timeout",
    "exhausted_retries",
    "policy_violation",
    "infrastructure_failure",
    "compensation_failed",
)
DEAD_STAGES = ("input", "fetch", "exec", "output", "commit")
MAX_SPARED = 5
"""How often in a row a task that was claimed ahead of need gets its attempt back."""


class RawJson(bytes):
    """JSON that is text already. It is checked, not parsed into objects."""

    @property
    def value(self) -> Any:
        # A plain copy: orjson takes bytes, and none of its subclasses.
        return orjson.loads(bytes(self))


def value_of(found: Any) -> Any:
    """JSON as a value, whether it was left as its text or not."""
    return found.value if isinstance(found, RawJson) else found


def json_of(text: str | None, raw: bool = False) -> Any:
    """What was stored as JSON: its value, or, for whoever only passes it on, its text."""
    if text is None or text == "null":
        return None
    return RawJson(text.encode()) if raw else orjson.loads(text)


@dataclass(frozen=True, slots=True)
class Task:
    """A task as anybody may see it."""

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
    labels: dict[str, str] = field(default_factory=dict)
    """Its job's: those of its flow, if it is a member of one."""
    actor: str = USER

    @property
    def actions(self) -> tuple[str, ...]:
        """The transitions that are allowed now, to the kind of actor that asked."""
        return TASK.actions(self.state, self.actor)


@dataclass(frozen=True, slots=True)
class Event:
    """One row of the log: a transition (it has a version) or a note (it has none)."""

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
    cursor: int
    ts: int
    attempt: int
    level: str
    line: str
    data: Any


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task has last said that it is."""

    at: int
    attempt: int
    done: float
    total: float | None
    message: str | None


@dataclass(slots=True)
class Assignment:
    """One claimed task: what to run, and the ticket that every report about it has to show."""

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
    """How long the lease of this claim is: renew it well before."""
    state: str = "assigned"
    flow: int = 0
    """The key of its flow; 0 for a single task."""
    version: int = 0
    """What the claim made of its version, if a success can be written without a look at it; else 0."""
    ticket: str = ""
    """Where a server has claimed it: the text that names all this to it. See `ticket_text`."""

    @property
    def payload(self) -> Any:
        return orjson.loads(self.payload_json)

    @property
    def input(self) -> Any:
        return None if self.input_json is None else orjson.loads(self.input_json)

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt: hand it to whatever must not happen twice."""
        return self.id

    @property
    def actions(self) -> tuple[str, ...]:
        return TASK.actions(self.state, "worker")


_TICKET = re.compile(r"([\da-f]{1,16})-([\da-f]{1,16})-([\da-f]{1,16})-([\da-f]{1,8})-([\da-f]{8})")


def ticket_text(a: Assignment) -> str:
    """What a claim gives a client to send back with its reports: the numbers that the engine knows the task by.

    It is a hint and proves nothing: a report that has it needs the right fence, worker and namespace all the same.
    """
    return f"{a.key:x}-{a.flow:x}-{a.lease:x}-{a.version:x}-{a.id[-8:]}"


def parse_ticket(text: str, id: str) -> dict[str, int]:
    """The numbers of a ticket, for the task of this id."""
    found = _TICKET.fullmatch(text)
    if found is None or found[5] != id[-8:].lower():
        raise InvalidInput("the ticket must be as the claim of this very task gave it, or left out", field="ticket")
    return {name: int(found[i], 16) for i, name in enumerate(("key", "flow", "lease", "version"), 1)}


class Receipt(NamedTuple):
    """The answer to a command that was accepted: where the task stands now."""

    id: str | None
    state: str
    fence: int
    version: int
    actor: str = USER
    repeated: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        return TASK.actions(self.state, self.actor)


class Holding(NamedTuple):
    """A task as its worker looks after it: whose lease it is under, and whether it should stop."""

    key: int
    id: str
    lease: int | None
    cancel_at: int | None
    state: str


class Beaten(NamedTuple):
    """The answer to a heartbeat: the lease holds until then, and these tasks should stop or are gone."""

    lease_expires_at: int
    cancel: tuple[str, ...]
    lost: tuple[str, ...]


class Verdict(NamedTuple):
    """One command's own answer: a value, or the error that refused it."""

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
    """One reason why a task is not claimable: what, who holds it, and when it ends (None: nobody knows)."""

    code: str
    message: str
    held_by: str | None = None
    ends_at: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
