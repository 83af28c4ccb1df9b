"""`ctx`: a handler's access to its own task: attempt, log, progress, checkpoints, cancellation, inputs.

A ContextBackend (of a worker, a child process or a test) carries out the calls. `ctx` uses a contextvar, so a handler
need not pass it around:

    from onetray import ctx

    @app.task
    def send_mail(to: str) -> None:
        ctx.log("sending", to=to)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from onetray.domain.errors import OnetrayError, TaskCancelled, WaitForInput
from onetray.domain.redactor import HIDDEN, Redactor, in_flow
from onetray.domain.schedule import fire_time_of

if TYPE_CHECKING:
    from onetray.app.job import Job
    from onetray.domain.task import Assignment


import orjson

logger = logging.getLogger("onetray.task")
ASK_AGAIN_S = 30.0
"""After a failed read of its flow's secrets, a task hides all that it logs for this long before it reads again."""
_NEVER = float("-inf")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class ContextBackend(Protocol):
    """Carries out the calls that a handler makes on `ctx`."""

    resources: Any

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None: ...

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def checkpoint(self, body: Any) -> Awaitable[None]: ...

    def last_checkpoint(self) -> Any: ...

    def inputs(self) -> dict[str, Any]: ...

    def config(self) -> Any: ...

    def answer(self) -> Any: ...

    def results_of(self, stage: str) -> list[Any]: ...

    def heartbeat(self) -> None: ...

    def asked_to_stop(self) -> str | None: ...

    def created_at(self) -> int: ...

    def say(self, **more: Any) -> None: ...


class Saved:
    """An awaitable that is done at once, for a checkpoint that is durable already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class TaskContext:
    """One attempt of one task, for its handler."""

    __slots__ = (
        "_assignment", "_backend", "_children", "_hide_all_until", "_knows_flow", "_redact", "_redactor", "_started_at"
    )  # fmt: skip

    def __init__(self, assignment: Assignment, backend: ContextBackend, redact: tuple[str, ...] = ()) -> None:
        """`redact` has the paths that the kind declares now; the assignment has those of the task's submit."""
        self._assignment, self._backend = assignment, backend
        self._started_at = time.time()
        self._children: dict[str, int] | None = None
        self._redact = redact
        self._redactor: Redactor | None = None
        self._knows_flow = False
        self._hide_all_until = _NEVER

    @property
    def id(self) -> str:
        return self._assignment.id

    @property
    def kind(self) -> str:
        return self._assignment.kind

    @property
    def queue(self) -> str:
        return self._assignment.queue

    @property
    def worker(self) -> str:
        return self._assignment.worker

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._assignment.attempt

    @property
    def fence(self) -> int:
        """Increases with every attempt: other systems can reject a write with an older fence."""
        return self._assignment.fence

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt, retry and redrive: pass it to external systems that must not act twice.

        It is the key of the submit if that had one, else the id of the first task of the chain of retries.
        """
        return self._assignment.idempotency_key or self.id

    @property
    def correlation_id(self) -> str:
        return self._assignment.correlation_id

    @property
    def scheduled_at(self) -> datetime | None:
        """The fire time of the schedule that this job comes from, the same on every attempt, retry and redrive.

        None if it comes from none. Tasks of a flow, and those that a handler submits, have that of their origin.
        """
        return fire_time_of(self.correlation_id)

    @property
    def trace(self) -> str | None:
        return self._assignment.trace

    @property
    def input(self) -> Any:
        """The input with which somebody resumed the task after `wait_for_input`."""
        return self._assignment.input

    @property
    def payload(self) -> Any:
        """The arguments, as JSON values."""
        return self._assignment.payload

    @property
    def resources(self) -> Any:
        """The value that the app's lifespan yielded."""
        return self._backend.resources

    @property
    def deadline(self) -> datetime | None:
        """When the attempt or the whole task times out, whichever is sooner."""
        policy, times = self._assignment.policy, []
        if policy.timeout_s is not None:
            times.append(datetime.fromtimestamp(self._started_at + policy.timeout_s, UTC))
        if policy.deadline_s is not None:
            created = datetime.fromtimestamp(self._backend.created_at() / 1e6, UTC)
            times.append(created + timedelta(seconds=policy.deadline_s))
        return min(times, default=None)

    def log(self, message: str, *, level: str = "info", **data: Any) -> None:
        """Write a line to the job's log and to the Python logger `onetray.task`."""
        number = LEVELS.get(level)
        if number is None:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
        message, stored = clean(str(message)), json_values(data) if data else None
        if logger.isEnabledFor(number):
            # Reads of the job's log are redacted; the process's log must not hold secrets at all.
            public = self._redacted_data(stored) if data and self.redacts else data
            suffix = "".join(f" {name}={value!r}" for name, value in public.items())
            extra = {"task": self.id, "data": public, "trace_id": self.trace and self.trace.split("-")[1]}
            logger.log(number, "%s %s: %s%s", self.kind, self.id, self.redacted(message), suffix, extra=extra)
        self._backend.log(level, message, stored)

    @property
    def redacts(self) -> bool:
        """Whether the task has redacted fields."""
        return bool(self._redact or self._assignment.policy.redact)

    def redacted(self, value: Any) -> Any:
        """A copy of the text or JSON without the task's secrets, for logs that others read."""
        if not self.redacts:
            return value
        if time.monotonic() < self._hide_all_until:
            return HIDDEN
        try:
            self._learn_flow()
        except (OnetrayError, RuntimeError):
            # The secrets are unknown, so hide everything. The handler waits for the read once, not for each line.
            self._hide_all_until = time.monotonic() + ASK_AGAIN_S
            return HIDDEN
        return self._hides().hide(value)

    def _learn_flow(self) -> None:
        """Read the flow's values, once: secrets among them may have reached the task in any way."""
        if self._assignment.flow and not self._knows_flow:
            for _ in (self.flow_config, self.approval, self.inputs):
                pass
            self._knows_flow = True

    def _redacted_data(self, data: Any) -> dict[str, Any]:
        public = self.redacted(data)
        return public if isinstance(public, dict) else {"data": public}

    def _remember_secrets(self, value: Any, name: str | None = None) -> Any:
        """Collect the secrets in a value that the handler reads, so that later log lines hide them."""
        if self.redacts and value is not None:
            self._hides().learn(value if name is None else {name: value})
        return value

    def _hides(self) -> Redactor:
        if self._redactor is None:
            self._redactor = redactor_of(self._assignment, self._redact)
        return self._redactor

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress. The worker writes the latest report after a short delay, in a batch."""
        number: Any
        for number in (done, 0 if total is None else total):
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                # A wrong progress report must not fail the task.
                wrong = self.redacted(repr(number))
                logger.warning("%s %s: progress must be a number, 0 or more, not %s", self.kind, self.id, wrong)
                return
        self._backend.progress(done, total, None if message is None else clean(str(message))[:1_000])

    def checkpoint(self, body: Any) -> Awaitable[None]:
        """Store a value for the next attempt. Durable on return; in an async handler, after `await`."""
        return self._backend.checkpoint(self._remember_secrets(body))

    @property
    def last_checkpoint(self) -> Any:
        """The last checkpoint of this attempt or an earlier one, or of the task that this one redrives; else None."""
        return self._remember_secrets(self._backend.last_checkpoint())

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the task was cancelled, its lease is lost, or the worker is stopping."""
        return self._backend.asked_to_stop() is not None

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if the handler should stop. Call it often in a handler that is not async."""
        reason = self._backend.asked_to_stop()
        if reason is not None:
            raise TaskCancelled(reason)

    def heartbeat(self) -> None:
        """Renew the lease now, and raise TaskCancelled if it is lost. The worker also renews it by itself."""
        self._backend.heartbeat()
        self.check_cancelled()

    def submit(self, task: Any, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a child with this task's correlation id and trace. A later attempt does not submit it again."""
        job: Job[Any] = task.submit(*args, **kwargs)
        return job

    def wait_for_input(self, owner: str = "anybody", reason: str = "waits for input") -> Any:
        """Pause the task until somebody resumes it with an input. The handler then restarts, and this returns it."""
        if self._assignment.input_json is not None:
            return self._assignment.input
        raise WaitForInput(owner, reason)

    @property
    def inputs(self) -> dict[str, Any]:
        """In a flow: results of earlier stages (`stages`) and of the tasks that this one depends on (`tasks`)."""
        inputs: dict[str, Any] = self._remember_secrets(self._backend.inputs())
        return inputs

    def results_of(self, stage: str) -> list[Any]:
        """In a flow: the results of all succeeded tasks of an earlier stage, without a limit."""
        results: list[Any] = self._remember_secrets(self._backend.results_of(stage))
        return results

    @property
    def flow_config(self) -> Any:
        """In a flow: its config, as JSON values."""
        return self._remember_secrets(self._backend.config(), "config")

    @property
    def approval(self) -> Any:
        """In a flow: the approval of this task's stage: by, at, verdict, note, input."""
        return self._remember_secrets(self._backend.answer(), "approval")

    def say(self, *, partial: bool = False, errors: Any = None, metrics: dict[str, Any] | None = None) -> None:
        """In a flow: mark the success as partial, and report errors and metrics with it."""
        self._backend.say(partial=partial, errors=errors, metrics=metrics)

    def child_key(self, body: str) -> str:
        """An idempotency key for a child: every attempt has the same key for the same child."""
        if self._children is None:
            self._children = {}
        number = self._children[body] = self._children.get(body, 0) + 1
        return f"{self.id}/{body}/{number}"


def redactor_of(assignment: Assignment, redact: tuple[str, ...] = ()) -> Redactor:
    """The redactor for the log of the process that runs the task."""
    paths = (*redact, *assignment.policy.redact)
    redactor = Redactor(in_flow(paths) if assignment.flow else paths)
    for value in (assignment.payload, assignment.input):
        redactor.learn(value)
    return redactor


current: ContextVar[TaskContext | None] = ContextVar("onetray.ctx", default=None)


class _Ctx:
    """A proxy for the context of the running task."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        context = current.get()
        if context is None:
            raise NoTask(f"ctx.{name} is available only while a task runs: use it in a handler, or in onetray.testing")
        return getattr(context, name)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("ctx cannot be changed")

    def __repr__(self) -> str:
        context = current.get()
        return "<ctx: no task runs here>" if context is None else f"<ctx of {context.kind} {context.id}>"


class NoTask(OnetrayError):
    """ctx is available only while a task runs: use it in a handler."""

    code = "no_task"


if TYPE_CHECKING:
    ctx: TaskContext
else:
    ctx = _Ctx()


TEXT_CHARS = 16_000
DATA_BYTES = 100_000
NUL = b"\\u0000"


def clean(text: str) -> str:
    """The text without NUL and lone surrogates, cut at TEXT_CHARS."""
    return text[:TEXT_CHARS].replace("\0", "\\0").encode("utf-8", "replace").decode()


def json_values(data: dict[str, Any] | None) -> Any:
    """The data of a log line as JSON values; a value without a JSON form becomes its repr."""
    if data is None:
        return None
    try:
        encoded = orjson.dumps(data, default=_safe_repr, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError):
        encoded = NUL
    if NUL in encoded:
        return {clean(str(name)): clean(_safe_repr(value)) for name, value in data.items()}
    return orjson.loads(encoded) if len(encoded) <= DATA_BYTES else {"cut": clean(encoded.decode())}


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"({type(value).__name__} cannot be printed)"
