"""`ctx`: what a handler knows about its task and may say while it runs.

Owns the face that handlers see. What stands behind it (a worker, a child process, a test) is a Desk. It is found by a
contextvar, so nothing has to be passed around:

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

if TYPE_CHECKING:
    from onetray.app.job import Job
    from onetray.domain.task import Assignment


import orjson

logger = logging.getLogger("onetray.task")
ASK_AGAIN_S = 30.0
"""How long all that a task of a flow logs is hidden after it could not be asked what to hide."""
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class ContextBackend(Protocol):
    """Where what a handler says goes to."""

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
    """The answer to a checkpoint that is durable already: there is nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class TaskContext:
    """One attempt of one task, as its handler sees it."""

    __slots__ = ("_assignment", "_began", "_children", "_desk", "_knows_flow", "_redact", "_redactor", "_unknown_until")

    def __init__(self, assignment: Assignment, desk: ContextBackend, redact: tuple[str, ...] = ()) -> None:
        """`redact`: what its kind says now. What it said when the task was submitted, the assignment knows."""
        self._assignment, self._desk = assignment, desk
        self._began = time.time()
        self._children: dict[str, int] | None = None
        self._redact = redact
        self._redactor: Redactor | None = None
        self._knows_flow = False
        self._unknown_until = float("-inf")

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
        """1 for the first."""
        return self._assignment.attempt

    @property
    def fence(self) -> int:
        """Rises with every attempt: what is written elsewhere with an older one is out of date."""
        return self._assignment.fence

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt: hand it to whatever must not happen twice."""
        return self._assignment.idempotency_key

    @property
    def correlation_id(self) -> str:
        return self._assignment.correlation_id

    @property
    def trace(self) -> str | None:
        return self._assignment.trace

    @property
    def input(self) -> Any:
        """What whoever resumed it has given, after `wait_for_input`."""
        return self._assignment.input

    @property
    def payload(self) -> Any:
        """The arguments, as JSON values."""
        return self._assignment.payload

    @property
    def resources(self) -> Any:
        """What the app's lifespan has yielded."""
        return self._desk.resources

    @property
    def deadline(self) -> datetime | None:
        """When this attempt is timed out, or the whole task: whichever comes first."""
        policy, times = self._assignment.policy, []
        if policy.timeout_s is not None:
            times.append(datetime.fromtimestamp(self._began + policy.timeout_s, UTC))
        if policy.deadline_s is not None:
            created = datetime.fromtimestamp(self._desk.created_at() / 1e6, UTC)
            times.append(created + timedelta(seconds=policy.deadline_s))
        return min(times, default=None)

    def log(self, message: str, *, level: str = "info", **data: Any) -> None:
        """Write a line into the job's log, and to the standard logger `onetray.task`."""
        number = LEVELS.get(level)
        if number is None:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
        message, kept = clean(str(message)), json_values(data) if data else None
        if logger.isEnabledFor(number):
            # The job's log has all of it, and hides it when it is shown. The process's log is anybody's.
            shown = self._redacted_data(kept) if data and self.redacts else data
            said = "".join(f" {name}={value!r}" for name, value in shown.items())
            beside = {"task": self.id, "data": shown, "trace_id": self.trace and self.trace.split("-")[1]}
            logger.log(number, "%s %s: %s%s", self.kind, self.id, self.redacted(message), said, extra=beside)
        self._desk.log(level, message, kept)

    @property
    def redacts(self) -> bool:
        """Whether anything of it is hidden from others than its handler."""
        return bool(self._redact or self._assignment.policy.redact)

    def redacted(self, value: Any) -> Any:
        """Text or JSON as it may be written where others read it: without what the task redacts."""
        if not self.redacts:
            return value
        if time.monotonic() < self._unknown_until:
            return HIDDEN
        try:
            self._learn_flow()
        except (OnetrayError, RuntimeError):
            # It cannot be known what is to be hidden: all of it is. The handler waits for that once, not for each line.
            self._unknown_until = time.monotonic() + ASK_AGAIN_S
            return HIDDEN
        return self._hides().hide(value)

    def _learn_flow(self) -> None:
        """What its flow was given may have got to it in any way. Asked for once, by the first line that it logs."""
        if self._assignment.flow and not self._knows_flow:
            for _ in (self.flow_config, self.approval, self.inputs):
                pass
            self._knows_flow = True

    def _redacted_data(self, data: Any) -> dict[str, Any]:
        found = self.redacted(data)
        return found if isinstance(found, dict) else {"data": found}

    def _remember_secrets(self, value: Any, name: str | None = None) -> Any:
        """What a handler is given may be what its next line must not say."""
        if self.redacts and value is not None:
            self._hides().learn(value if name is None else {name: value})
        return value

    def _hides(self) -> Redactor:
        if self._redactor is None:
            self._redactor = redactor_of(self._assignment, self._redact)
        return self._redactor

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far it is. The last word counts; it is written soon, with others."""
        number: Any
        for number in (done, 0 if total is None else total):
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                # What is only told on the side must not cost the work.
                odd = self.redacted(repr(number))
                logger.warning("%s %s: progress is told in numbers, 0 or more, not %s", self.kind, self.id, odd)
                return
        self._desk.progress(done, total, None if message is None else clean(str(message))[:1_000])

    def checkpoint(self, body: Any) -> Awaitable[None]:
        """Keep something for the next attempt. Durable when this returns; in an async handler, when it was awaited."""
        return self._desk.checkpoint(self._remember_secrets(body))

    @property
    def last_checkpoint(self) -> Any:
        """What this attempt or an earlier one has kept last; None when there is nothing."""
        return self._remember_secrets(self._desk.last_checkpoint())

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: a cancel was asked for, its lease is lost, or its worker stops."""
        return self._desk.asked_to_stop() is not None

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if it should stop. Call it often in a handler that is not async."""
        why = self._desk.asked_to_stop()
        if why is not None:
            raise TaskCancelled(why)

    def heartbeat(self) -> None:
        """Have the lease renewed now, and stop if it is lost. The worker renews it by itself, too."""
        self._desk.heartbeat()
        self.check_cancelled()

    def submit(self, task: Any, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a child: it carries this task's correlation and trace. A second attempt submits it no second time."""
        job: Job[Any] = task.submit(*args, **kwargs)
        return job

    def wait_for_input(self, owner: str = "anybody", reason: str = "waits for input") -> Any:
        """Give the task up until somebody resumes it with an input. The handler then starts again, and gets it here."""
        if self._assignment.input_json is not None:
            return self._assignment.input
        raise WaitForInput(owner, reason)

    @property
    def inputs(self) -> dict[str, Any]:
        """In a flow: what the stages before gave (`stages`), and the tasks that this one depends on (`tasks`)."""
        inputs: dict[str, Any] = self._remember_secrets(self._desk.inputs())
        return inputs

    def results_of(self, stage: str) -> list[Any]:
        """In a flow: the results of all tasks of an earlier stage that succeeded, however many there are."""
        results: list[Any] = self._remember_secrets(self._desk.results_of(stage))
        return results

    @property
    def flow_config(self) -> Any:
        """In a flow: what it was submitted with, as JSON values."""
        return self._remember_secrets(self._desk.config(), "config")

    @property
    def approval(self) -> Any:
        """In a flow: what was said by who approved this task's stage."""
        return self._remember_secrets(self._desk.answer(), "approval")

    def say(self, *, partial: bool = False, errors: Any = None, metrics: dict[str, Any] | None = None) -> None:
        """Say more about the success of a flow's task: that it has errors, and what it measured."""
        self._desk.say(partial=partial, errors=errors, metrics=metrics)

    def child_key(self, body: str) -> str:
        """A key for a child: the same for the same child of another attempt."""
        if self._children is None:
            self._children = {}
        number = self._children[body] = self._children.get(body, 0) + 1
        return f"{self.id}/{body}/{number}"


def redactor_of(assignment: Assignment, redact: tuple[str, ...] = ()) -> Redactor:
    """What of a task is hidden in the log of the process that runs it."""
    paths = (*redact, *assignment.policy.redact)
    redactor = Redactor(in_flow(paths) if assignment.flow else paths)
    for given in (assignment.payload, assignment.input):
        redactor.learn(given)
    return redactor


current: ContextVar[TaskContext | None] = ContextVar("onetray.ctx", default=None)


class _Ctx:
    """The context of the task that runs here."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        found = current.get()
        if found is None:
            raise NoTask(f"ctx.{name} was asked for where no task runs: use it in a handler, or in onetray.testing")
        return getattr(found, name)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("ctx cannot be changed")

    def __repr__(self) -> str:
        found = current.get()
        return "<ctx: no task runs here>" if found is None else f"<ctx of {found.kind} {found.id}>"


class NoTask(OnetrayError):
    """There is no task here: ctx is for handlers."""

    code = "no_task"


if TYPE_CHECKING:
    ctx: TaskContext
else:
    ctx = _Ctx()


TEXT_CHARS = 16_000
DATA_BYTES = 100_000
NUL = b"\\u0000"


def clean(text: str) -> str:
    """A text without NUL and lone surrogates, cut where it becomes too long."""
    return text[:TEXT_CHARS].replace("\0", "\\0").encode("utf-8", "replace").decode()


def json_values(data: dict[str, Any] | None) -> Any:
    """The data of a line as JSON values. What JSON does not know is told as Python prints it."""
    if data is None:
        return None
    try:
        written = orjson.dumps(data, default=_printed, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError):
        written = NUL
    if NUL in written:
        return {clean(str(name)): clean(_printed(value)) for name, value in data.items()}
    return orjson.loads(written) if len(written) <= DATA_BYTES else {"cut": clean(written.decode())}


def _printed(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"({type(value).__name__} cannot be printed)"
