"""One attempt of one task in this worker: its assignment, its state, and why its handler should stop.

Implements what a handler's `ctx` calls. Log lines and progress are buffered here until the reporter sends them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from onetray.app.context import Saved, TaskContext, redactor_of
from onetray.domain.commands import Checkpoint, Log, Progress, Release, Report, Start, Succeed, ticket
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError

if TYPE_CHECKING:
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.flow import More
    from onetray.domain.task import Assignment, Verdict
    from onetray.engine.api import EngineApi
    from onetray.worker.leases import Lease
    from onetray.worker.reporter import Reporter

logger = logging.getLogger("onetray.worker")

CANCEL, LOST, STOPPING = "its cancel was requested", "its lease is lost", "its worker is stopping"
START_NOT_WRITTEN = "its start could not be recorded"
MAX_LINES = 1_000

# Deques: the handler appends at one end while the reporter takes from the other.
Output = tuple[deque[tuple[str, str, Any]], deque[tuple[float, float | None, str | None]]]
"""Unsent log lines, and the latest progress. Created on first use: most handlers write neither."""
_OUTPUT_LOCK = threading.Lock()
"""Threads that a handler has started may write their first log lines at the same moment."""


class Attempt:
    """An attempt that this worker holds."""

    __slots__ = (
        "_engine", "_output", "_reporter", "assignment", "began_at", "claimed_at", "has_earlier_reports", "has_ended",
        "interrupt", "lease", "more", "resources", "start_accepted", "start_sent", "stop_reason", "task",
    )  # fmt: skip

    def __init__(
        self, assignment: Assignment, task: TaskDefinition[Any, Any], reporter: Reporter, engine: EngineApi
    ) -> None:
        self.assignment, self.task = assignment, task
        self._reporter, self._engine = reporter, engine
        self.resources: Any = None
        self.lease: Lease | None = None
        """None until HeldLeases has recorded the claim."""
        self.claimed_at = time.monotonic()
        self.began_at: float | None = None
        self.start_sent = self.start_accepted = self.has_earlier_reports = False
        """Whether a start was sent separately, whether it was accepted, whether any report precedes the outcome."""
        self.has_ended = False
        """Whether its outcome is decided: the handler has ended, or the task was released without it."""
        self.stop_reason: str | None = None
        self.interrupt: Callable[[], None] | None = None
        """Stops the handler from any thread. None for a handler in a thread, which cannot be stopped from outside."""
        self.more: dict[str, Any] = {}
        self._output: Output | None = None

    def context(self) -> TaskContext:
        """A new `ctx` for the handler. Not stored here: that would be a reference cycle."""
        return TaskContext(self.assignment, self, self.task.policy.redact)

    def redacted(self, error: object) -> str:
        """The text of an error, safe to log."""
        if not self.task.policy.redact and not self.assignment.policy.redact:
            return str(error)
        if isinstance(error, InvalidInput):
            return f"{error.code}: the message is hidden, it may quote redacted values"
        return str(redactor_of(self.assignment, self.task.policy.redact).hide(str(error)))

    def __repr__(self) -> str:
        return f"{self.assignment.kind} {self.assignment.id} (attempt {self.assignment.attempt})"

    @property
    def members(self) -> list[Attempt]:
        """The attempts that its call runs: itself. A batch has several."""
        return [self]

    def begin(self, now: float | None = None) -> None:
        self.began_at = time.monotonic() if now is None else now
        self._reporter.attempt_began(self)

    def valid_until(self) -> float | None:
        """Until when no other worker can hold the task, by this machine's monotonic clock."""
        return None if self.lease is None else self.lease.valid_until

    def lease_is_valid(self) -> bool:
        """Whether the lease still holds. Checked before the handler begins: this process may have been suspended."""
        return self.lease is None or time.monotonic() <= self.lease.valid_until

    def may_begin(self) -> bool:
        """Whether the handler may be called. Records the start first if the policy has `durable_start`."""
        if self.stop_reason is None and not self.lease_is_valid():
            logger.warning("%r is not started: its lease has expired", self)
            self.stop_reason = LOST
        if self.stop_reason is None and self.assignment.policy.durable_start and not self.start_accepted:
            self._start_durably()
        return self.stop_reason is None

    def _start_durably(self) -> None:
        try:
            self._engine.call(Start(**self.ticket()))
            self.start_sent = self.start_accepted = self.has_earlier_reports = True
        except (Conflict, NotFound) as e:
            logger.warning("%r is not started: %s", self, self.redacted(e))
            self.stop_reason = LOST
        except OnetrayError as e:
            # No work was done yet, so a release loses nothing.
            logger.warning("%r is not started, its start could not be recorded: %s", self, self.redacted(e))
            self.stop_reason = START_NOT_WRITTEN

    def release_unstarted(self) -> Release:
        """The report of an attempt that was stopped before its handler was called."""
        return Release(reason=self.stop_reason, **self.ticket())

    def interrupt_by(self, interrupt: Callable[[], None] | None) -> None:
        """Set what stops the handler, from any thread."""
        self.interrupt = interrupt

    def ask_to_stop(self, reason: str) -> None:
        """Stop the handler. The first reason stays, except that a lost lease replaces any other."""
        if self.stop_reason is None or reason == LOST:
            self.stop_reason = reason
            interrupt = self.interrupt
            if interrupt is not None and not self.has_ended:
                interrupt()

    def ticket(self) -> dict[str, Any]:
        return ticket(self.assignment)

    def success(self, result: Any, more: More | None) -> Succeed:
        return success_of(self.assignment, result, more)

    def take_output(self) -> list[Report]:
        """Remove the buffered log lines and progress, and return them as reports."""
        reports: list[Report] = []
        if self._output is None:
            return reports
        lines, progress = self._output
        if lines:
            batch = tuple(lines.popleft() for _ in range(min(len(lines), MAX_LINES)))
            reports.append(Log(lines=batch, **self.ticket()))
        if progress:
            done, total, message = progress.pop()
            reports.append(Progress(done=done, total=total, message=message, **self.ticket()))
        return reports

    @property
    def has_log_lines(self) -> bool:
        return self._output is not None and bool(self._output[0])

    # Called by the handler's ctx.

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None:
        (self._output or self._new_output())[0].append((level, line, data))
        self._reporter.output_added(self)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        (self._output or self._new_output())[1].append((done, total, message))
        self._reporter.output_added(self)

    def _new_output(self) -> Output:
        with _OUTPUT_LOCK:
            self.has_earlier_reports = True
            if self._output is None:
                self._output = (deque(), deque(maxlen=1))
            return self._output

    def checkpoint(self, body: Any) -> Awaitable[None]:
        command = Checkpoint(body=body, **self.ticket())
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._engine.call(command)
            return Saved()
        saved: asyncio.Future[None] = loop.create_future()

        def settle_saved(verdict: Verdict) -> None:
            loop.call_soon_threadsafe(_settle, saved, verdict)

        self.has_earlier_reports = True
        self._reporter.put(self, command, settle_saved)
        return saved

    def last_checkpoint(self) -> Any:
        return self._engine.last_checkpoint(self.assignment.id, namespace=self.assignment.namespace)

    def inputs(self) -> dict[str, Any]:
        return self._engine.inputs(self.assignment.id, namespace=self.assignment.namespace)

    def config(self) -> Any:
        """The data that the flow was submitted with."""
        namespace = self.assignment.namespace
        task = self._engine.task(self.assignment.id, namespace=namespace)
        return self._engine.flow(task.job_id, namespace=namespace).data

    def answer(self) -> Any:
        """The input that came with the approval of the task's stage."""
        namespace = self.assignment.namespace
        stage = self._engine.task(self.assignment.id, namespace=namespace).stage_id
        return None if stage is None else self._engine.stage(stage, namespace=namespace).answer

    def results_of(self, stage: str) -> list[Any]:
        engine, namespace = self._engine, self.assignment.namespace
        flow = engine.task(self.assignment.id, namespace=namespace).job_id
        ids = [s.id for s in engine.stages(flow, namespace=namespace) if s.name == stage]
        return [result for id_ in ids for result in engine.all_results(id_, namespace=namespace)]

    def created_at(self) -> int:
        return self._engine.task(self.assignment.id, namespace=self.assignment.namespace).created_at

    def heartbeat(self) -> None:
        self._reporter.request_heartbeat(self)

    def asked_to_stop(self) -> str | None:
        return self.stop_reason

    def say(self, **more: Any) -> None:
        self.more.update(more)


def success_of(a: Assignment, result: Any, more: More | None = None) -> Succeed:
    """The same as `Succeed(result=result, more=more, **ticket(a))`, in a quarter of the time."""
    if a.ticket:
        return Succeed(result=result, more=more, **ticket(a))
    success: Succeed = Succeed.__new__(Succeed)
    success.task, success.namespace, success.fence, success.worker = a.key, a.namespace, a.fence, a.worker
    success.flow, success.lease, success.version, success.attempt = a.flow, a.lease, a.version, a.attempt
    success.lease_id = success.ticket = success.trace = success.metadata = success.result_json = None
    success.result, success.more, success.ran_s = result, more, 0.0
    success.started, success.is_of_claim = False, True
    return success


def _settle(saved: asyncio.Future[None], verdict: Verdict) -> None:
    if saved.done():
        return
    if verdict.error is not None:
        saved.set_exception(verdict.error)
    else:
        saved.set_result(None)
