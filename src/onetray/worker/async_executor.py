"""Run async handlers on the event loop: one after another in one asyncio task, until a handler suspends.

Owns the asyncio tasks and the attempts that are ready to run in them. A handler that never suspends costs no asyncio
task of its own. One that suspends keeps its task, so that `asyncio.current_task()` stays the same and cancelling
that task affects no other handler; the next handlers run in another one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from contextvars import Context
from sys import getrefcount
from time import monotonic
from types import coroutine
from typing import TYPE_CHECKING, Any

from onetray.domain.commands import Report
from onetray.worker.call_handler import call, call_handler, failure

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.worker.attempt import Attempt

Steps = Coroutine[Any, Any, Report | None]
OnEnded = Callable[[Sequence[tuple["Attempt", Report | None]]], None]

MAX_TURN_S = 0.005
"""How long handlers run in a row before the loop's timers and other callbacks get their turn."""
GROWTH = 16
"""Growth of the number of asyncio tasks while handlers suspend: ready handlers must not begin one per turn."""


class AsyncExecutor:
    """Not thread-safe, except for `report_ended` and `SharedTask.interrupt`: call it in the loop's thread."""

    def __init__(
        self,
        app: Onetray,
        loop: asyncio.AbstractEventLoop,
        finish: Callable[[list[Attempt]], list[Attempt]],
        on_ended: OnEnded,
        concurrency: int,
    ) -> None:
        self._app, self._loop, self._finish = app, loop, finish
        self._on_ended, self._concurrency = on_ended, concurrency
        self.open: dict[asyncio.Task[None], SharedTask] = {}
        """Strong references: asyncio keeps only weak references to its tasks."""
        self._ready: deque[Attempt] = deque()
        self._free, self._max_free = 0, 1
        """How many asyncio tasks have not suspended, and how many of those to have: see _run_shared_task."""
        self._ended_attempts: list[Attempt] = []
        """Ended, but still counted as running."""
        self._unreported: deque[tuple[Attempt, Report | None]] = deque()
        self._report_lock = threading.Lock()
        self._context = Context()
        """The context of the asyncio tasks themselves. Each handler has its own."""
        self._turn_end_scheduled = False
        self._turn_ends_at = 0.0
        """When to yield to the loop."""

    def begin(self, attempts: list[Attempt]) -> None:
        """Begin these attempts in the next turn of the loop."""
        self._ready.extend(attempts)
        self._open_tasks()

    def report_ended(self) -> None:
        """Report the attempts that have ended. Thread-safe: the loop may be blocked by the next handler."""
        with self._report_lock:
            ended = [self._unreported.popleft() for _ in range(len(self._unreported))]
            if ended:
                self._on_ended(ended)

    def _open_tasks(self) -> None:
        """Open asyncio tasks for ready attempts: a single one, as long as handlers do not suspend."""
        while self._free < min(len(self._ready), self._max_free):
            self._free += 1
            shared_task = SharedTask(self._loop)
            task = shared_task.task = self._loop.create_task(self._run_shared_task(shared_task), context=self._context)
            self.open[task] = shared_task
            task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        if self.open.pop(task).is_free:
            # Cancelled before its first step, by a handler that cancels all tasks of the loop.
            self._free -= 1
            self._open_tasks()

    async def _run_shared_task(self, shared_task: SharedTask) -> None:
        is_suspended = False
        try:
            # Other tasks may have run what this one was opened for.
            if self._free <= self._max_free:
                is_suspended = self._run_ready(shared_task)
                self._max_free = min(GROWTH * self._max_free, self._concurrency) if is_suspended else 1
        finally:
            shared_task.is_free = False
            self._free -= 1
            self._open_tasks()
        if not is_suspended:
            return
        attempt = shared_task.attempt
        report: Report | None
        try:
            attempt.interrupt = shared_task.interrupt
            if attempt.stop_reason is not None:
                shared_task.cancel()
            report = await _resume(shared_task.context, shared_task.steps, shared_task.waits_for)
        except GeneratorExit:
            raise
        except BaseException as e:
            report = _unexpected_report(attempt, e)
        attempt.interrupt = None
        self._end(attempt, report)

    def _run_ready(self, shared_task: SharedTask) -> bool:
        """Run ready attempts, one after another. Returns whether the last one has suspended."""
        ready, task = self._ready, shared_task.task
        # The same expression as below: the references it holds itself differ between versions of Python.
        alone = getrefcount(task)
        while ready or self._refill():
            attempt = shared_task.attempt = ready.popleft()
            context = Context()
            report: Report | None
            try:
                steps = self._handler_steps(attempt)
                waits_for = context.run(steps.send, None)
            except StopIteration as e:
                report = e.value
            except BaseException as e:
                report = _unexpected_report(attempt, e)
            else:
                shared_task.context, shared_task.steps, shared_task.waits_for = context, steps, waits_for
                return True
            self._end(attempt, report)
            # If the task was cancelled, or somebody keeps it and may cancel it later, it must not run the next handler.
            if task.cancelling() or getrefcount(task) > alone:
                break
            if attempt.began_at is not None and attempt.began_at > self._turn_ends_at:
                break
        return False

    def _handler_steps(self, attempt: Attempt) -> Steps:
        # One look at the clock for the lease and the start.
        now, lease = monotonic(), attempt.lease
        has_expired = lease is not None and now > lease.valid_until
        if has_expired or attempt.stop_reason is not None or attempt.assignment.policy.durable_start:
            return self._begin_checked(attempt)
        attempt.begin(now)
        return call_handler(self._app, attempt.task, attempt.context(), call, attempt, attempt.more)

    async def _begin_checked(self, attempt: Attempt) -> Report | None:
        if attempt.stop_reason is None:
            await asyncio.to_thread(attempt.may_begin)
        if attempt.stop_reason is not None:
            return attempt.release_unstarted()
        attempt.begin()
        return await call_handler(self._app, attempt.task, attempt.context(), call, attempt, attempt.more)

    def _end(self, attempt: Attempt, report: Report | None) -> None:
        attempt.has_ended = True
        self._unreported.append((attempt, report))
        self._ended_attempts.append(attempt)
        if not self._turn_end_scheduled:
            # Attempts that end in one turn of the loop are reported together.
            self._turn_end_scheduled, self._turn_ends_at = True, monotonic() + MAX_TURN_S
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_end_scheduled = False
        self.report_ended()
        self._refill()
        self._open_tasks()

    def _refill(self) -> bool:
        """Replace ended attempts by waiting ones. Returns whether any is ready."""
        if self._ended_attempts:
            over, self._ended_attempts = self._ended_attempts, []
            self._ready.extend(self._finish(over))
        return bool(self._ready)


class SharedTask:
    """An asyncio task, and the attempt that it runs."""

    __slots__ = ("_cancel_reason", "_loop", "attempt", "context", "is_free", "steps", "task", "waits_for")

    attempt: Attempt
    task: asyncio.Task[None]
    context: Context
    steps: Steps
    waits_for: Any

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_free = True
        self._cancel_reason: str | None = None

    def interrupt(self) -> None:
        """Cancel the handler, from any thread."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Cancel the handler, once for each reason: a second cancel would interrupt its cleanup."""
        if not self.attempt.has_ended and self._cancel_reason != self.attempt.stop_reason:
            self._cancel_reason = self.attempt.stop_reason
            self.task.cancel()


@coroutine
def _resume(context: Context, steps: Steps, waits_for: Any) -> Generator[Any, Any, Report | None]:
    """Run a suspended coroutine to its end, each step in its own context."""
    while True:
        step: Callable[[Any], Any] = steps.send
        try:
            value = yield waits_for
        except GeneratorExit:
            context.run(steps.close)
            raise
        except BaseException as e:
            step, value = steps.throw, e
        try:
            waits_for = context.run(step, value)
        except StopIteration as e:
            report: Report | None = e.value
            return report
        finally:
            # If it is an error, its traceback would keep this frame alive.
            del value


def _unexpected_report(attempt: Attempt, error: BaseException) -> Report:
    """The report of an attempt whose coroutine raised instead of returning a report."""
    if isinstance(error, asyncio.CancelledError) and (attempt.began_at is None or attempt.stop_reason is not None):
        # Cancelled while its start was recorded, before the handler was called; or while an on_error hook ran.
        return attempt.release_unstarted()
    return failure(error, attempt.ticket())
