"""The commands about tasks: one class for each verb, checked before any transaction begins.

Owns their fields and limits. engine/ carries them out; declare.py explains how a command is declared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import orjson

from onetray.config import Limits
from onetray.domain import fields as f
from onetray.domain.checks import check_when, json_text, listed, optional_json, text, trace_text
from onetray.domain.declare import Command as Command
from onetray.domain.declare import command
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import More
from onetray.domain.flow_specs import check_more
from onetray.domain.lifecycle import BLOCKED, PAUSED
from onetray.domain.machine import USER, WORKER
from onetray.domain.policy import Policy
from onetray.domain.task import DEAD_STAGES, REASON_CODES, Assignment, Beaten, Receipt
from onetray.domain.token import OPERATE, SUBMIT, WORK

MAX_KINDS = 1_000
"""How many kinds one claim can name."""


class ReservedKey(NamedTuple):
    """A key of a dialect, bound to one body whatever its kind. The engine's own idempotency keys are per kind."""

    owner: str
    """The dialect and the namespace."""
    key: str
    route: str
    body_hash: str
    ttl_s: float


@command(
    "submit", scope=SUBMIT, summary="Submit a task", answer=Receipt, repeatable=True,
    example={"kind": "send_mail", "payload": {"to": "ann@example.com"}, "labels": {"tenant": "a"}},
)  # fmt: skip
class Submit(Command):
    """Put a task into its queue."""

    kind: f.Name
    payload: Annotated[Any, f.Json("payload_bytes", into="payload_json")] = None
    queue: f.Name = "default"
    namespace: f.Namespace = "default"
    priority: f.Priority = 0
    delay_s: f.Seconds | None = None
    run_at: f.Time | None = None
    """The earliest time to run. Set this or `delay_s`."""
    max_attempts: f.Attempts | None = None
    policy: Annotated[Policy, f.Spec(Policy)] | None = None
    idempotency_key: f.Key | None = None
    """The same as the header `Idempotency-Key`, for each job of a batch."""
    unique_key: f.Key | None = None
    """While a job of this kind with this key is open, a submit creates nothing and returns that job."""
    debounce_s: f.WindowSeconds | None = None
    """Run after this many seconds without another submit of this kind and `debounce_key`: each one replaces the payload
    of the job that waits, and lets it wait again."""
    debounce_key: f.Key | None = None
    """By default all submits of the kind share one."""
    debounce_max_s: f.WindowSeconds | None = None
    """Run at the latest this many seconds after the first submit."""
    throttle_s: f.WindowSeconds | None = None
    """For this many seconds, further submits of this kind and `throttle_key` create nothing and return this job."""
    throttle_key: f.Key | None = None
    """By default all submits of the kind share one."""
    alias: f.AliasText | None = None
    """An id of your own, unique in the namespace among tasks, flows and contexts. A second submit with it fails."""
    labels: f.LabelTexts | None = None
    metadata: f.Metadata = None
    correlation_id: f.Key | None = None
    trace: f.Traceparent | None = None
    tracestate: f.Tracestate | None = None
    cause: f.Reason | None = None
    actor: f.Actor = USER
    actor_name: f.ActorName = "anonymous"
    reserves: Annotated[ReservedKey, f.Spec(ReservedKey), f.INTERNAL] | None = None
    """Reserved in the same transaction, with an `idempotency_key` that expires with it."""
    tells_written: Annotated[bool, f.FLAG, f.INTERNAL] = False
    """Whether the receipt of a new task says what was written: it need not be read for an answer."""
    payload_json: str = field(init=False, default="null")

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        if self.delay_s is not None:
            check_when(self.delay_s, self.run_at)
        if self.has_window or self.debounce_key is not None or self.throttle_key is not None:
            _check_window(self)

    @property
    def has_window(self) -> bool:
        """Whether it is debounced or throttled."""
        return self.debounce_s is not None or self.throttle_s is not None or self.debounce_max_s is not None

    @property
    def body(self) -> object:
        """What a second submit with the same idempotency key must repeat."""
        alias = [] if self.alias is None else [self.alias]
        return [self.queue, orjson.loads(self.payload_json), *alias]


def _check_window(c: Submit) -> None:
    if c.debounce_s is None and (c.debounce_key is not None or c.debounce_max_s is not None):
        raise InvalidInput("debounce_key and debounce_max_s need debounce_s: set it", field="debounce_s")
    if c.throttle_s is None and c.throttle_key is not None:
        raise InvalidInput("throttle_key needs throttle_s: set it", field="throttle_s")
    if c.debounce_s is not None and c.throttle_s is not None:
        raise InvalidInput("set debounce_s or throttle_s, not both", field="debounce_s")
    if c.debounce_s is not None and (c.delay_s is not None or c.run_at is not None):
        raise InvalidInput("debounce_s says when it runs: leave out delay_s and run_at", field="debounce_s")
    if c.debounce_s is not None and c.debounce_max_s is not None and c.debounce_max_s < c.debounce_s:
        raise InvalidInput("debounce_max_s must be at least debounce_s", field="debounce_max_s")
    if c.unique_key is not None:
        raise InvalidInput("set unique_key, debounce_s or throttle_s, only one of them", field="unique_key")


@command(
    "claim", scope=WORK, summary="Claim tasks", answer=list[Assignment], answer_name="tasks", repeatable=True,
    example={"queue": "default", "worker": "worker-1", "limit": 10},
)  # fmt: skip
class Claim(Command):
    """Take up to `limit` tasks from a queue, highest priority first, then oldest first."""

    worker: f.Name
    queue: f.Name = "default"
    kinds: Annotated[tuple[str, ...], f.Names(MAX_KINDS)] | None = None
    limit: Annotated[int, f.Whole(1, "batch")] = 1
    lease_s: f.LeaseSeconds | None = None
    request_key: f.Key | None = None
    """A repeated claim with this key returns the same tasks. Same as the header `Idempotency-Key`."""
    start: bool = False
    """Start the tasks in the same transaction, and with them their stages and flows."""
    expiry_counts: bool = False
    """A lease that expires before the start of its task costs the attempt. By default such an attempt is returned,
    because the task may only have been claimed ahead of need."""
    limited_limit: Annotated[int, f.Whole(0, "batch")] | None = None
    """At most so many of the tasks may be under a limit (see docs/limits.md); by default all. A claimed task uses its
    limits: a worker claims only as many of these as can begin at once."""
    namespace: f.Namespace = "default"
    found_limits: bool | None = field(init=False, default=None)
    """Whether the queue had limits when it ran in this process; None: unknown."""
    expects_one: bool = field(init=False, default=False)
    """Whether its worker was woken for a single task: see engine/fast_claim.py."""
    only_new: bool = field(init=False, default=False)
    """Whether its worker knows that the queue is empty: it runs only if its transaction makes tasks claimable there."""


@dataclass(slots=True)
class TaskCommand(Command):
    """A command about one task, named by its public id or, from a claim, by its key."""

    task: Annotated[int | str, f.TaskRef()]
    namespace: f.Namespace = "default"
    actor: ClassVar[str] = USER
    answers: ClassVar[Any] = Receipt


@dataclass(slots=True, kw_only=True)
class Report(TaskCommand):
    """A command of the worker that holds the task. Without a fence and a lease id it refers to the current attempt."""

    actor: ClassVar[str] = WORKER
    route: ClassVar[str] = "/tasks/{id}/{verb}"
    checked_before: ClassVar[frozenset[str]] = frozenset(
        {"task", "namespace", "fence", "worker", "lease_id", "ticket", "trace", "flow", "lease", "version", "attempt"}
    )
    fence: Annotated[int, f.Whole(1, f.INT32), f.Public(required=True)] | None = None
    worker: Annotated[str, f.Text("name_chars"), f.Public(required=True)] | None = None
    lease_id: f.Key | None = None
    """The `lease_id` of the claim. If it is set, it is compared, too."""
    ticket: f.Key | None = None
    """The ticket of the claim, if available: saves the server a read of the task."""
    trace: f.Traceparent | None = None
    flow: Annotated[int, f.Whole(0, f.INT64), f.INTERNAL] | None = None
    """The key of the task's flow, from the claim: 0 for a single task, None if unknown."""
    lease: Annotated[int, f.Whole(0, f.INT64), f.INTERNAL] = 0
    version: Annotated[int, f.Whole(0, f.INT32), f.INTERNAL] = 0
    attempt: Annotated[int, f.Whole(0, f.INT32), f.INTERNAL] = 0
    """From the claim. With all three, the engine writes a success without reading the task first."""
    is_of_claim: bool = field(init=False, default=False, repr=False, compare=False)
    """Whether a worker has made it of an assignment of this process: what names the task needs no check."""

    def check(self, limits: Limits) -> None:
        if self.is_of_claim and self.trace is None:
            self.check_fields(limits)
            return
        # Written out instead of using the rules: most commands are reports, and these are most of their fields.
        names = self.namespace, self.worker, limits.name_chars
        if type(self.task) is not int or not 0 < self.task <= f.INT64 or not _are_known(names):
            self.task = f.TaskRef().check(self.task, "task", limits)
            text(self.namespace, "namespace", limits.name_chars)
            if self.worker is not None:
                text(self.worker, "worker", limits.name_chars)
            if len(_KNOWN) < _MAX_KNOWN:
                _KNOWN.add(names)
        if self.flow is not None and (type(self.flow) is not int or not 0 <= self.flow <= f.INT64):
            raise InvalidInput("flow must be the number from the claim", field="flow")
        if self.fence is not None and (type(self.fence) is not int or not 0 < self.fence <= f.INT32):
            raise InvalidInput("fence must be the number from the claim", field="fence")
        if type(self.lease) is not int or not 0 <= self.lease <= f.INT64:
            raise InvalidInput("lease must be the number from the claim", field="lease")
        if type(self.version) is not int or not 0 <= self.version <= f.INT32:
            raise InvalidInput("version must be the number from the claim", field="version")
        if type(self.attempt) is not int or not 0 <= self.attempt <= f.INT32:
            raise InvalidInput("attempt must be the number from the claim", field="attempt")
        if self.lease_id is not None:
            text(self.lease_id, "lease_id", limits.key_chars)
        if self.ticket is not None:
            text(self.ticket, "ticket", limits.key_chars)
        if self.trace is not None:
            trace_text(self.trace)
        self.check_fields(limits)


_KNOWN: set[tuple[str, str | None, int]] = set()
"""Checked namespaces and worker names: they are the same in all reports of a worker."""
_MAX_KNOWN = 1_000


def _are_known(names: tuple[str, str | None, int]) -> bool:
    try:
        return names in _KNOWN
    except TypeError:  # Not text: the caller's checks reject it.
        return False


def ticket(a: Assignment) -> dict[str, Any]:
    """The fields by which a report identifies the claimed task."""
    if a.ticket:
        return {"task": a.id, "fence": a.fence, "worker": a.worker, "namespace": a.namespace, "ticket": a.ticket}
    return {
        "task": a.key, "fence": a.fence, "worker": a.worker, "namespace": a.namespace, "flow": a.flow,
        "lease": a.lease, "version": a.version, "attempt": a.attempt,
    }  # fmt: skip


@command("start", scope=WORK, summary="Report that a task's handler has started", repeatable=True)
class Start(Report):
    """The handler has started."""


@command("beat", scope=WORK, summary="Renew a lease", answer=Beaten, repeatable=True, example={"lease_s": 60})
class Beat(Report):
    """Renew the lease of this task, which covers all tasks of its claim."""

    lease_s: f.LeaseSeconds | None = None


@command("succeed", scope=WORK, summary="Report a task's success", repeatable=True, example={"result": {"sent": True}})
class Succeed(Report):
    """The task succeeded. A member of a flow may report more than its result."""

    result: Annotated[Any, f.Json("result_bytes", into="result_json")] = None
    ran_s: f.Seconds = 0.0
    """How long ago the handler started: the time of a start that is recorded together with the outcome."""
    more: Annotated[More, f.Spec(More, check_more, flat=True)] | None = None
    """What a member of a flow reports besides its result."""
    metadata: f.Metadata = None
    """Replaces the task's metadata; null leaves it."""
    started: bool = False
    """Whether its start was already reported and accepted."""
    result_json: str | None = field(init=False, default=None)


@command(
    "fail", scope=WORK, summary="Report a failed attempt", repeatable=True,
    example={"message": "the mail server refused", "error_class": "SmtpError", "retryable": True},
)  # fmt: skip
class Fail(Report):
    """The attempt failed. The policy decides whether to retry, unless the report does."""

    message: Annotated[str, f.Text("error_chars", least=0)]
    error_class: f.Name = "Error"
    retryable: bool | None = None
    reason_code: Annotated[str, f.Choice(REASON_CODES)] | None = None
    """Dead-letter the task for this reason: at once, or if `retryable` is true, when its attempts are used up."""
    stage: Annotated[str, f.Choice(DEAD_STAGES)] = "exec"
    detail: Annotated[Any, f.Json("result_bytes", into="detail_json")] = None
    retry_after_s: f.Seconds | None = None
    metadata: f.Metadata = None
    """Replaces the task's metadata, also if it is retried; null leaves it."""
    ran_s: f.Seconds = 0.0
    detail_json: str | None = field(init=False, default=None)
    error_json: str = field(init=False, default="")

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        body: dict[str, Any] = {"class": self.error_class, "message": self.message, "stage": self.stage}
        if self.detail_json is not None:
            body["detail"] = orjson.Fragment(self.detail_json)
        self.error_json = json_text(body, "error", limits.result_bytes + 100_000)


@command("release", scope=WORK, summary="Release a task", repeatable=True, example={"reason": "the worker stops"})
class Release(Report):
    """Return the task to its queue. It costs no attempt."""

    reason: f.Reason | None = None
    delay_s: f.Seconds = 0.0


@command(
    "pause", scope=WORK, summary="Pause a task until it is resumed", repeatable=True,
    example={"state": "waiting_input", "owner": "ann", "reason": "which address?"},
)  # fmt: skip
class Pause(Report):
    """Give up the lease and wait until a user resumes the task. `owner` names that user."""

    state: Annotated[str, f.Choice(PAUSED)] = BLOCKED
    owner: f.Name
    reason: f.Reason


@dataclass(frozen=True, slots=True)
class Lines(f.Rule):
    """Log lines: each a text, or a level, a text and data."""

    into: str

    def check(self, value: Any, label: str, limits: Limits) -> tuple[tuple[str, str, str | None], ...]:
        return tuple(_line(line, limits) for line in listed(value, label, 1, limits.batch))


def _line(line: object, limits: Limits) -> tuple[str, str, str | None]:
    level, message, data = line if isinstance(line, tuple) and len(line) == 3 else ("info", line, None)
    return (
        text(level, "lines.level", 20),
        text(message, "lines", limits.line_chars, least=0),
        optional_json(data, "lines.data", limits.result_bytes),
    )


@command(
    "log", scope=WORK, summary="Append to a task's log", answer=int, answer_name="cursor",
    example={"lines": ["connected", {"level": "warning", "line": "slow", "data": {"ms": 900}}]},
)  # fmt: skip
class Log(Report):
    """Append lines to the task's log."""

    lines: Annotated[tuple[str | tuple[str, str, Any], ...], Lines(into="stored")]
    stored: tuple[tuple[str, str, str | None], ...] = field(init=False, default=())


@command(
    "progress", scope=WORK, summary="Report a task's progress", repeatable=True,
    example={"done": 30, "total": 100, "message": "a third"},
)  # fmt: skip
class Progress(Report):
    """Report the task's progress. Only the last report is kept."""

    done: f.Amount
    total: f.Amount | None = None
    message: f.Reason | None = None


@command(
    "checkpoint", scope=WORK, summary="Store a value for a task's next attempt", repeatable=True,
    example={"body": {"page": 7}},
)  # fmt: skip
class Checkpoint(Report):
    """Store a value for the next attempt. Only the last one is kept."""

    body: Annotated[Any, f.Json("result_bytes", into="body_json")]
    body_json: str = field(init=False, default="")


@dataclass(slots=True, kw_only=True)
class Control(TaskCommand):
    """A command of a user, or of the engine, that does not hold the task."""

    actor_name: f.ActorName = "anonymous"
    cause: f.Why | None = None
    trace: f.Traceparent | None = None


@command(
    "resume", scope=OPERATE, summary="Resume a paused task", path="/tasks/{id}/resume",
    example={"input": {"approved": True}},
)  # fmt: skip
class Resume(Control):
    """Return a task that is blocked or waits for input to its queue, with the input."""

    input: Annotated[Any, f.Json("payload_bytes", into="input_json")] = None
    """The input that the task waits for. A flow takes none."""
    input_json: str | None = field(init=False, default=None)


@command("cancel", scope=OPERATE, summary="Cancel a task")
class Cancel(Control):
    """Cancel softly (ask the worker to stop, revoke the lease after the grace period) or hard (revoke it at once)."""

    hard: bool = False
    grace_s: f.Seconds | None = None


@command("redrive", scope=OPERATE, summary="Run an ended task again", example={"delay_s": 0})
class Redrive(Control):
    """Submit a dead letter, or any ended task, again: as a new job that is linked to the old one."""

    delay_s: f.Seconds = 0.0
    run_at: f.Time | None = None
    """The earliest time to run. Set this or `delay_s`."""
    keep_attempts: bool = False
    """Whether the attempts of the old task count against the budget of the new one."""

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        if self.run_at is not None and self.delay_s:
            raise InvalidInput("set delay_s or run_at, not both", field="delay_s")


@command("set_priority", scope=OPERATE, summary="Set a task's priority", repeatable=True, example={"priority": 10})
class SetPriority(Control):
    """Tasks with a higher priority are claimed first."""

    priority: f.Priority


@command(
    "set_metadata", scope=OPERATE, summary="Replace a task's metadata", path="/tasks/{id}/metadata", repeatable=True,
    example={"metadata": {"ticket": "OPS-7"}},
)  # fmt: skip
class SetMetadata(Control):
    """Replace the metadata of a task, in any state."""

    metadata: f.Metadata


@command("reschedule", scope=OPERATE, summary="Change when a queued task runs", example={"delay_s": 60})
class Reschedule(Control):
    """Change when a queued task runs."""

    run_at: f.Time | None = None
    delay_s: f.Seconds | None = None

    def check(self, limits: Limits) -> None:
        Command.check(self, limits)
        if (self.run_at is None) == (self.delay_s is None):
            raise InvalidInput("set either run_at or delay_s", field="run_at")
