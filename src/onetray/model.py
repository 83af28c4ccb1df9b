"""The values that go in and come out: policies, tasks, events, dead letters, log lines, answers.

Owns their shape. Knows no SQL and changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from onetray.clock import SECOND
from onetray.errors import InvalidInput, OnetrayError, shown
from onetray.lifecycle import TASK
from onetray.machine import USER
from onetray.redaction import MOST_PATHS, why_not_a_path

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
ON_EXHAUSTION = ("dead_letter", "fail")
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


@dataclass(frozen=True)
class Policy:
    """How a kind of task is run. A task keeps the policy that it was submitted under."""

    max_attempts: int = 3
    backoff_base_s: float = 0.5
    backoff_factor: float = 2.0
    backoff_max_s: float = 60.0
    jitter: bool = True
    retry_on: tuple[str, ...] = ()
    no_retry_on: tuple[str, ...] = ()
    lease_s: float = 60.0
    heartbeat_s: float | None = None
    timeout_s: float | None = None
    queue_ttl_s: float | None = None
    deadline_s: float | None = None
    cancel_grace_s: float = 30.0
    on_exhaustion: str = "dead_letter"
    record_heartbeats: bool = False
    durable_start: bool = False
    idempotency_ttl_s: float = 86_400.0
    breaker_failures: int | None = None
    """So many failed attempts of the kind, within the window, open its breaker; None: they are not counted."""
    breaker_window_s: float = 60.0
    breaker_open_s: float = 30.0
    redact: tuple[str, ...] = ()
    """What of payload, input and result nobody is shown but the handler: paths by dots, `*` for every item."""

    def __post_init__(self) -> None:
        for name in ("retry_on", "no_retry_on", "redact"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.heartbeat_s is None and _is_number(self.lease_s) and self.lease_s <= _TEN_YEARS_S:
            object.__setattr__(self, "heartbeat_s", max(self.lease_s / 2, _SHORTEST_S))
        _check_policy(self)

    @cached_property
    def lease_us(self) -> int:
        return int(self.lease_s * SECOND)

    @cached_property
    def body(self) -> str:
        """The policy as JSON, the same text for the same policy."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def from_body(cls, body: str) -> Policy:
        """Read what any version has written: words that this version does not know are left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in orjson.loads(body).items() if k in known})

    def with_(self, **changes: Any) -> Policy:
        if "lease_s" in changes and "heartbeat_s" not in changes:
            changes["heartbeat_s"] = None
        return replace(self, **changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_class_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= CLASS_CHARS and value.isprintable()


_TEN_YEARS_S = 10 * 366 * 86_400.0
_SHORTEST_S = 0.001
CLASS_CHARS = 200
POLICY_BOUNDS: dict[str, tuple[float, float]] = {
    "max_attempts": (1, 1_000_000),
    "backoff_factor": (1, 1000),
    "breaker_failures": (1, 1000),
    **dict.fromkeys(("backoff_base_s", "backoff_max_s", "cancel_grace_s"), (0, _TEN_YEARS_S)),
    **dict.fromkeys(
        ("lease_s", "heartbeat_s", "idempotency_ttl_s", "breaker_window_s", "breaker_open_s", "timeout_s",
         "queue_ttl_s", "deadline_s"), (_SHORTEST_S, _TEN_YEARS_S)),
}  # fmt: skip
"""What the numbers of a policy may be. The API's description says the same."""


def _within(p: Policy, name: str) -> bool:
    least, most = POLICY_BOUNDS[name]
    value = getattr(p, name)
    return _is_number(value) and least <= value <= most


def _check_policy(p: Policy) -> None:
    def refuse(name: str, must: str) -> None:
        raise InvalidInput(f"policy.{name} must be {must}, not {shown(getattr(p, name))}", field=f"policy.{name}")

    if type(p.max_attempts) is not int or not _within(p, "max_attempts"):
        refuse("max_attempts", "a whole number from 1 to 1,000,000")
    for name in ("backoff_base_s", "backoff_max_s", "cancel_grace_s"):
        if not _within(p, name):
            refuse(name, "seconds, 0 or more, at most ten years")
    if not _within(p, "backoff_factor"):
        refuse("backoff_factor", "a number from 1 to 1,000")
    failures = p.breaker_failures
    if failures is not None and (type(failures) is not int or not _within(p, "breaker_failures")):
        refuse("breaker_failures", "None, or a whole number from 1 to 1,000")
    for name in ("lease_s", "heartbeat_s", "idempotency_ttl_s", "breaker_window_s", "breaker_open_s"):
        if not _within(p, name):
            refuse(name, "seconds, 0.001 or more, at most ten years")
    for name in ("timeout_s", "queue_ttl_s", "deadline_s"):
        if getattr(p, name) is not None and not _within(p, name):
            refuse(name, "None, or seconds, 0.001 or more, at most ten years")
    if p.heartbeat_s is not None and p.lease_s > 2 * p.heartbeat_s * 1.000001:
        refuse("lease_s", f"at most twice heartbeat_s ({p.heartbeat_s})")
    if p.on_exhaustion not in ON_EXHAUSTION:
        refuse("on_exhaustion", " or ".join(ON_EXHAUSTION))
    for name in ("jitter", "record_heartbeats", "durable_start"):
        if type(getattr(p, name)) is not bool:
            refuse(name, "true or false")
    for name in ("retry_on", "no_retry_on"):
        names = getattr(p, name)
        if not isinstance(names, tuple) or not all(_is_class_name(n) for n in names):
            refuse(name, "a list of class names")
    paths: object = p.redact
    if not isinstance(paths, tuple) or len(paths) > MOST_PATHS:
        refuse("redact", f"a list of at most {MOST_PATHS} paths")
    for path in p.redact:
        if why := why_not_a_path(path):
            refuse("redact", f"a list of paths, each {why}")


class Row(NamedTuple):
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
