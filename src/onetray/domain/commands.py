"""The commands: one class for each verb, checked before any transaction begins.

Owns what a command may say and the limits on it. Decides nothing about the task: see engine/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from onetray.config import Limits
from onetray.domain.checks import (
    FAR_US,
    amount,
    check_actor,
    check_labels,
    check_when,
    choice,
    json_text,
    listed,
    optional_json,
    optional_text,
    seconds,
    task_id,
    text,
    trace_text,
    whole,
)
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import More
from onetray.domain.flow_specs import check_more
from onetray.domain.lifecycle import BLOCKED, PAUSED
from onetray.domain.machine import USER, WORKER
from onetray.domain.policy import Policy
from onetray.domain.task import DEAD_STAGES, REASON_CODES, Assignment

INT32 = 2**31 - 1
MOST_KINDS = 1_000
"""Kinds that one claim names."""


@dataclass(slots=True)
class Command:
    """What all commands share. `check` raises, or fills in the checked, stored forms."""

    verb: ClassVar[str] = ""

    @property
    def size(self) -> int:
        """How much it adds to a transaction: as many tasks."""
        return 1

    def check(self, limits: Limits) -> None:
        raise InvalidInput(f"{type(self).__name__} is not a command", field="verb")


@dataclass(slots=True, kw_only=True)
class Submit(Command):
    """Put a task into its queue."""

    verb: ClassVar[str] = "submit"
    kind: str
    payload: Any = None
    queue: str = "default"
    namespace: str = "default"
    priority: int = 0
    delay_s: float | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    policy: Policy | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    """While a job of this kind with this key has not ended, that job is the answer, and nothing is submitted."""
    labels: dict[str, str] | None = None
    correlation_id: str | None = None
    trace: str | None = None
    cause: str | None = None
    actor: str = USER
    actor_name: str = "anonymous"
    payload_json: str = ""

    def check(self, limits: Limits) -> None:
        name = limits.name_chars
        text(self.kind, "kind", name)
        text(self.queue, "queue", name)
        text(self.namespace, "namespace", name)
        if self.priority != 0 or type(self.priority) is not int:
            whole(self.priority, "priority", -INT32, INT32)
        check_when(self.delay_s, self.run_at)
        if self.max_attempts is not None:
            whole(self.max_attempts, "max_attempts", 1, 1_000_000)
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise InvalidInput("policy must be a Policy", field="policy")
        if self.idempotency_key is not None:
            text(self.idempotency_key, "idempotency_key", limits.key_chars)
        if self.unique_key is not None:
            text(self.unique_key, "unique_key", limits.key_chars)
        if self.labels is not None:
            self.labels = check_labels(self.labels, limits)
        if self.correlation_id is not None:
            text(self.correlation_id, "correlation_id", limits.key_chars)
        trace_text(self.trace)
        check_actor(self.actor, self.actor_name, self.cause, limits)
        self.payload_json = json_text(self.payload, "payload", limits.payload_bytes)

    @property
    def body(self) -> object:
        """What a second submit under the same key must say again."""
        return [self.queue, orjson.loads(self.payload_json)]


@dataclass(slots=True, kw_only=True)
class Claim(Command):
    """Take up to `limit` tasks from a queue, highest priority first, then oldest first."""

    verb: ClassVar[str] = "claim"
    worker: str
    queue: str = "default"
    kinds: tuple[str, ...] | None = None
    limit: int = 1
    lease_s: float | None = None
    request_key: str | None = None
    namespace: str = "default"

    def check(self, limits: Limits) -> None:
        text(self.worker, "worker", limits.name_chars)
        text(self.queue, "queue", limits.name_chars)
        text(self.namespace, "namespace", limits.name_chars)
        whole(self.limit, "limit", 1, limits.batch)
        if self.kinds is not None:
            names = listed(self.kinds, "kinds", 0, MOST_KINDS)
            self.kinds = tuple(dict.fromkeys(text(k, "kinds", limits.name_chars) for k in names))
        if self.lease_s is not None:
            seconds(self.lease_s, "lease_s", 0.001)
        optional_text(self.request_key, "request_key", limits.key_chars)


@dataclass(slots=True)
class TaskCommand(Command):
    """A command about one task, named by its public id or, from a claim, by its key."""

    task: int | str
    namespace: str = "default"
    actor: ClassVar[str] = USER

    def check(self, limits: Limits) -> None:
        if not isinstance(self.task, int) or isinstance(self.task, bool):
            self.task = task_id(self.task)
        elif not 0 < self.task < 2**63:
            raise InvalidInput("task must be an id or a key from a claim", field="task")
        text(self.namespace, "namespace", limits.name_chars)


@dataclass(slots=True, kw_only=True)
class Report(TaskCommand):
    """A command by the worker that holds the task. Without a fence the current attempt is meant."""

    actor: ClassVar[str] = WORKER
    fence: int | None = None
    worker: str | None = None
    trace: str | None = None
    flow: int | None = None
    """The key of the task's flow as its claim told it, 0 for none; None when it is not known."""
    lease: int = 0
    version: int = 0
    """As the claim told them. With both a success is written without a look at the task first."""

    def check(self, limits: Limits) -> None:
        names = self.namespace, self.worker, limits.name_chars
        if type(self.task) is not int or not 0 < self.task < 2**63 or not _are_known(names):
            TaskCommand.check(self, limits)
            if self.worker is not None:
                text(self.worker, "worker", limits.name_chars)
            if len(_KNOWN) < _MOST_KNOWN:
                _KNOWN.add(names)
        if self.flow is not None and (type(self.flow) is not int or not 0 <= self.flow < 2**63):
            raise InvalidInput("flow must be the number from the claim", field="flow")
        if self.fence is not None and (type(self.fence) is not int or not 0 < self.fence <= INT32):
            raise InvalidInput("fence must be the number from the claim", field="fence")
        if type(self.lease) is not int or not 0 <= self.lease < 2**63:
            raise InvalidInput("lease must be the number from the claim", field="lease")
        if type(self.version) is not int or not 0 <= self.version <= INT32:
            raise InvalidInput("version must be the number from the claim", field="version")
        if self.trace is not None:
            trace_text(self.trace)


_KNOWN: set[tuple[str, str | None, int]] = set()
"""The namespaces and names of workers that were found good: a worker says the same in all its reports."""
_MOST_KNOWN = 1_000


def _are_known(names: tuple[str, str | None, int]) -> bool:
    try:
        return names in _KNOWN
    except TypeError:  # Something else than text, which is refused in a moment.
        return False


def ticket(a: Assignment) -> dict[str, Any]:
    """The fields by which a report names what was claimed."""
    return {
        "task": a.key, "fence": a.fence, "worker": a.worker, "namespace": a.namespace, "flow": a.flow,
        "lease": a.lease, "version": a.version,
    }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Start(Report):
    verb: ClassVar[str] = "start"


@dataclass(slots=True, kw_only=True)
class Succeed(Report):
    verb: ClassVar[str] = "succeed"
    result: Any = None
    ran_s: float = 0.0
    """How long ago the handler began: dates the start that is recorded together with the outcome."""
    more: More | None = None
    """What a member of a flow says besides its result."""
    started: bool = False
    """Whether its start was reported before, and accepted."""
    result_json: str | None = None

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        self.result_json = optional_json(self.result, "result", limits.result_bytes)
        if type(self.started) is not bool:
            raise InvalidInput("started must be true or false", field="started")
        if self.more is not None:
            check_more(self.more, limits)
        if self.ran_s:
            seconds(self.ran_s, "ran_s")


@dataclass(slots=True, kw_only=True)
class Fail(Report):
    """Say that the attempt failed. The policy decides what follows, unless this says it."""

    verb: ClassVar[str] = "fail"
    message: str
    error_class: str = "Error"
    retryable: bool | None = None
    reason_code: str | None = None
    """Send the task to the dead letters at once, for this reason."""
    stage: str = "exec"
    detail: Any = None
    retry_after_s: float | None = None
    ran_s: float = 0.0
    error_json: str = ""

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        text(self.error_class, "error_class", limits.name_chars)
        text(self.message, "message", limits.error_chars, least=0)
        if self.retryable is not None and type(self.retryable) is not bool:
            raise InvalidInput("retryable must be true, false or None", field="retryable")
        if self.reason_code is not None:
            choice(self.reason_code, "reason_code", REASON_CODES)
        choice(self.stage, "stage", DEAD_STAGES)
        if self.retry_after_s is not None:
            seconds(self.retry_after_s, "retry_after_s")
        seconds(self.ran_s, "ran_s")
        body: dict[str, Any] = {"class": self.error_class, "message": self.message, "stage": self.stage}
        if self.detail is not None:
            body["detail"] = orjson.Fragment(json_text(self.detail, "detail", limits.result_bytes))
        self.error_json = json_text(body, "error", limits.result_bytes + 100_000)


@dataclass(slots=True, kw_only=True)
class Release(Report):
    """Give the task back unharmed: it costs no attempt."""

    verb: ClassVar[str] = "release"
    reason: str | None = None
    delay_s: float = 0.0

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        optional_text(self.reason, "reason", limits.reason_chars)
        seconds(self.delay_s, "delay_s")


@dataclass(slots=True, kw_only=True)
class Pause(Report):
    """Give up the lease and wait for somebody: `owner` says who has to resume it."""

    verb: ClassVar[str] = "pause"
    state: str = BLOCKED
    owner: str
    reason: str

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        choice(self.state, "state", PAUSED)
        text(self.owner, "owner", limits.name_chars)
        text(self.reason, "reason", limits.reason_chars)


@dataclass(slots=True, kw_only=True)
class Beat(Report):
    """Renew the lease that this task was claimed under, with all tasks of that claim."""

    verb: ClassVar[str] = "beat"
    lease_s: float | None = None

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        if self.lease_s is not None:
            seconds(self.lease_s, "lease_s", 0.001)


@dataclass(slots=True, kw_only=True)
class Log(Report):
    """Append lines to the task's log."""

    verb: ClassVar[str] = "log"
    lines: tuple[str | tuple[str, str, Any], ...] = ()
    stored: tuple[tuple[str, str, str | None], ...] = ()

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        lines = listed(self.lines, "lines", 1, limits.batch)
        self.stored = tuple(self._line(line, limits) for line in lines)

    def _line(self, line: object, limits: Limits) -> tuple[str, str, str | None]:
        level, words, data = line if isinstance(line, tuple) and len(line) == 3 else ("info", line, None)
        return (
            text(level, "lines.level", 20),
            text(words, "lines", limits.line_chars, least=0),
            optional_json(data, "lines.data", limits.result_bytes),
        )


@dataclass(slots=True, kw_only=True)
class Progress(Report):
    """Say how far the task is: the last word of its holder is kept."""

    verb: ClassVar[str] = "progress"
    done: float
    total: float | None = None
    message: str | None = None

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        amount(self.done, "done")
        if self.total is not None:
            amount(self.total, "total")
        optional_text(self.message, "message", limits.reason_chars)


@dataclass(slots=True, kw_only=True)
class Checkpoint(Report):
    """Keep something for the next attempt: the last one is found by it."""

    verb: ClassVar[str] = "checkpoint"
    body: Any
    body_json: str = ""

    def check(self, limits: Limits) -> None:
        Report.check(self, limits)
        self.body_json = json_text(self.body, "body", limits.result_bytes)


@dataclass(slots=True, kw_only=True)
class Control(TaskCommand):
    """A command by somebody who does not hold the task."""

    actor_name: str = "anonymous"
    cause: str | None = None
    trace: str | None = None

    def check(self, limits: Limits) -> None:
        TaskCommand.check(self, limits)
        check_actor(self.actor, self.actor_name, self.cause, limits)
        trace_text(self.trace)


@dataclass(slots=True, kw_only=True)
class Resume(Control):
    verb: ClassVar[str] = "resume"
    input: Any = None
    input_json: str | None = None

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        self.input_json = optional_json(self.input, "input", limits.payload_bytes)


@dataclass(slots=True, kw_only=True)
class Cancel(Control):
    """Cancel softly (ask a running worker to stop, then revoke after the grace) or hard (revoke at once)."""

    verb: ClassVar[str] = "cancel"
    hard: bool = False
    grace_s: float | None = None

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        if type(self.hard) is not bool:
            raise InvalidInput("hard must be true or false", field="hard")
        if self.grace_s is not None:
            seconds(self.grace_s, "grace_s")


@dataclass(slots=True, kw_only=True)
class Redrive(Control):
    """Submit a dead letter, or anything terminal, again: a new job that names the old one."""

    verb: ClassVar[str] = "redrive"
    delay_s: float = 0.0

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        seconds(self.delay_s, "delay_s")


@dataclass(slots=True, kw_only=True)
class SetPriority(Control):
    verb: ClassVar[str] = "set_priority"
    priority: int

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        whole(self.priority, "priority", -INT32, INT32)


@dataclass(slots=True, kw_only=True)
class Reschedule(Control):
    """Let a queued task run at another time."""

    verb: ClassVar[str] = "reschedule"
    run_at: int | None = None
    delay_s: float | None = None

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        if (self.run_at is None) == (self.delay_s is None):
            raise InvalidInput("give run_at or delay_s", field="run_at")
        if self.delay_s is not None:
            seconds(self.delay_s, "delay_s")
        else:
            whole(self.run_at, "run_at", 0, FAR_US)
