"""One attempt of one task in this worker: what it is, what was said about it, whether it should stop.

Owns its own state. It is the Desk behind `ctx`: what a handler says is kept here until the outbox sends it.
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
from onetray.domain.commands import Checkpoint, Log, Progress, Release, Report, Start, ticket
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError

if TYPE_CHECKING:
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.task import Assignment, Verdict
    from onetray.engine.api import EngineApi
    from onetray.worker.leases import Lease
    from onetray.worker.reporter import Reporter

logger = logging.getLogger("onetray.worker")

CANCEL, LOST, STOPPING = "a cancel was asked for", "its lease is lost", "its worker stops"
UNWRITTEN = "its start could not be written"
MOST_LINES = 1_000

# Deques: the handler adds at one end while the outbox takes from the other.
Said = tuple[deque[tuple[str, str, Any]], deque[tuple[float, float | None, str | None]]]
"""The lines of a handler, and its last progress. Most handlers say nothing: they have none."""
_BEGINNING = threading.Lock()
"""A handler may have threads of its own, which speak for the first time at once."""


class Attempt:
    """An attempt that this worker holds."""

    __slots__ = (
        "_engine", "_outbox", "_said", "assignment", "began", "interrupt", "lease", "more", "over", "resources",
        "spoke", "start_sent", "started", "stop", "taken_at", "task",
    )  # fmt: skip

    def __init__(
        self, assignment: Assignment, task: TaskDefinition[Any, Any], outbox: Reporter, engine: EngineApi
    ) -> None:
        self.assignment, self.task = assignment, task
        self._outbox, self._engine = outbox, engine
        self.resources: Any = None
        self.lease: Lease | None = None
        """What holds it, once it is held."""
        self.taken_at = time.monotonic()
        self.began: float | None = None
        self.start_sent = self.started = self.spoke = False
        """Whether its start was sent by itself, whether it was accepted, whether anything was sent about it at all."""
        self.over = False
        """Whether its handler has ended."""
        self.stop: str | None = None
        self.interrupt: Callable[[], None] | None = None
        """Stops the handler from outside, where that can be done."""
        self.more: dict[str, Any] = {}
        self._said: Said | None = None

    def context(self) -> TaskContext:
        """What its handler sees of it. Not kept here: the two would keep each other alive."""
        return TaskContext(self.assignment, self, self.task.policy.redact)

    def redacted(self, error: object) -> str:
        """An error as it may be logged."""
        if not self.task.policy.redact and not self.assignment.policy.redact:
            return str(error)
        if isinstance(error, InvalidInput):
            return f"{error.code}: its words may quote what the task redacts"
        return str(redactor_of(self.assignment, self.task.policy.redact).hide(str(error)))

    def __repr__(self) -> str:
        return f"{self.assignment.kind} {self.assignment.id} (attempt {self.assignment.attempt})"

    def begin(self) -> None:
        self.began = time.monotonic()
        self._outbox.began(self)

    def sure_until(self) -> float | None:
        """Until when nobody else can hold it, by the monotonic clock of this machine."""
        return None if self.lease is None else self.lease.sure_until

    def is_sure(self) -> bool:
        """Whether it is still ours. Asked before its handler begins: this process may have been stopped for a while."""
        return self.lease is None or time.monotonic() <= self.lease.sure_until

    def may_begin(self) -> bool:
        """Whether its handler is to be called, with its start written before if the policy asks for that."""
        if self.stop is None and not self.is_sure():
            logger.warning("%r does not begin: its lease has run out", self)
            self.stop = LOST
        if self.stop is None and self.assignment.policy.durable_start and not self.started:
            self._start_durably()
        return self.stop is None

    def _start_durably(self) -> None:
        try:
            self._engine.call(Start(**self.ticket()))
            self.start_sent = self.started = self.spoke = True
        except (Conflict, NotFound) as e:
            logger.warning("%r does not begin: %s", self, self.redacted(e))
            self.stop = LOST
        except OnetrayError as e:
            # Nothing was done yet: somebody else, or this worker later, begins it without loss.
            logger.warning("%r does not begin, its start could not be written: %s", self, self.redacted(e))
            self.stop = UNWRITTEN

    def unbegun(self) -> Release:
        """The report of a task that was told to stop before its handler was called."""
        return Release(reason=self.stop, **self.ticket())

    def ask_to_stop(self, why: str) -> None:
        """Tell the handler to stop. What was said first stays, unless the task is lost altogether."""
        if self.stop is None or why == LOST:
            self.stop = why
            interrupt = self.interrupt
            if interrupt is not None and not self.over:
                interrupt()

    def ticket(self) -> dict[str, Any]:
        return ticket(self.assignment)

    def to_say(self) -> list[Report]:
        """What its handler has said since the last time, as commands."""
        said: list[Report] = []
        if self._said is None:
            return said
        lines, progress = self._said
        if lines:
            some = tuple(lines.popleft() for _ in range(min(len(lines), MOST_LINES)))
            said.append(Log(lines=some, **self.ticket()))
        if progress:
            done, total, message = progress.pop()
            said.append(Progress(done=done, total=total, message=message, **self.ticket()))
        return said

    @property
    def has_more_to_say(self) -> bool:
        return self._said is not None and bool(self._said[0])

    # The desk: what the handler's ctx does.

    def log(self, level: str, line: str, data: dict[str, Any] | None) -> None:
        (self._said or self._begin_to_say())[0].append((level, line, data))
        self._outbox.say(self)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        (self._said or self._begin_to_say())[1].append((done, total, message))
        self._outbox.say(self)

    def _begin_to_say(self) -> Said:
        with _BEGINNING:
            self.spoke = True
            if self._said is None:
                self._said = (deque(), deque(maxlen=1))
            return self._said

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

        self.spoke = True
        self._outbox.put(self, command, settle_saved)
        return saved

    def last_checkpoint(self) -> Any:
        return self._engine.last_checkpoint(self.assignment.id, namespace=self.assignment.namespace)

    def inputs(self) -> dict[str, Any]:
        return self._engine.inputs(self.assignment.id, namespace=self.assignment.namespace)

    def config(self) -> Any:
        """What its flow was submitted with."""
        namespace = self.assignment.namespace
        task = self._engine.task(self.assignment.id, namespace=namespace)
        return self._engine.flow(task.job_id, namespace=namespace).data

    def answer(self) -> Any:
        """What somebody said who approved its stage."""
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
        self._outbox.wants_a_beat(self)

    def asked_to_stop(self) -> str | None:
        return self.stop

    def say(self, **more: Any) -> None:
        self.more.update(more)


def _settle(saved: asyncio.Future[None], verdict: Verdict) -> None:
    if saved.done():
        return
    if verdict.error is not None:
        saved.set_exception(verdict.error)
    else:
        saved.set_result(None)
