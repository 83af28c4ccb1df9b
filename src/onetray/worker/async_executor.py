"""Async handlers on the event loop: one after another in one asyncio task, until one of them waits for something.

Owns the asyncio tasks (lanes) and what is ready for them. A handler that never waits costs no task of its own. One that
waits keeps the lane it began in, alone, so that `asyncio.current_task()` stays the same for it and whoever cancels
that task reaches no other job; the next ones go on in another lane. Places are the floor's to give.
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
Ended = Callable[[Sequence[tuple["Attempt", Report | None]]], None]

TURN_S = 0.005
"""How long the lanes go on without giving others on the loop their turn."""
SPREAD = 16
"""How many lanes are opened for each one whose handler waits: what is ready must not begin one by one, turn by turn."""


class AsyncExecutor:
    """All but `tell` and what a run's `interrupt` calls is for the loop's thread only."""

    def __init__(
        self,
        app: Onetray,
        loop: asyncio.AbstractEventLoop,
        follow: Callable[[list[Attempt]], list[Attempt]],
        ended: Ended,
        most: int,
    ) -> None:
        self._app, self._loop, self._follow, self._ended, self._most = app, loop, follow, ended, most
        self.open: dict[asyncio.Task[None], SharedTask] = {}
        """Kept here, for asyncio itself keeps its tasks by weak references only."""
        self._ready: deque[Attempt] = deque()
        self._free, self._spread = 0, 1
        """How many lanes do not wait, and how many of them to have. It grows while handlers wait, see _work."""
        self._over: list[Attempt] = []
        """What has ended and still has its place."""
        self._untold: deque[tuple[Attempt, Report | None]] = deque()
        self._telling = threading.Lock()
        self._context = Context()
        """That of the lanes themselves. Handlers have one each."""
        self._turn_ends = False
        self._until = 0.0
        """How long the lanes may go on in this turn of the loop."""

    def take(self, runs: list[Attempt]) -> None:
        """Begin these, which have their places, as soon as the loop comes to it."""
        self._ready.extend(runs)
        self._widen()

    def tell(self) -> None:
        """Have reported what has ended. From any thread: the loop may be blocked by the next handler."""
        with self._telling:
            ended = [self._untold.popleft() for _ in range(len(self._untold))]
            if ended:
                self._ended(ended)

    def _widen(self) -> None:
        """Have lanes for what is ready: a single one, while handlers do not wait."""
        while self._free < min(len(self._ready), self._spread):
            self._free += 1
            lane = SharedTask(self._loop)
            task = lane.task = self._loop.create_task(self._work(lane), context=self._context)
            self.open[task] = lane
            task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        if self.open.pop(task).is_free:
            # Cancelled before its first step: some handler cancels all there is on the loop.
            self._free -= 1
            self._widen()

    async def _work(self, lane: SharedTask) -> None:
        waits = False
        try:
            # Others may have done meanwhile what this one was opened for.
            if self._free <= self._spread:
                waits = self._go(lane)
                self._spread = min(SPREAD * self._spread, self._most) if waits else 1
        finally:
            lane.is_free = False
            self._free -= 1
            self._widen()
        if not waits:
            return
        run = lane.run
        report: Report | None
        try:
            run.interrupt = lane.interrupt
            if run.stop is not None:
                lane.cancel()
            report = await _rest(lane.context, lane.steps, lane.waits_for)
        except GeneratorExit:
            raise
        except BaseException as e:
            report = _odd(run, e)
        run.interrupt = None
        self._end(run, report)

    def _go(self, lane: SharedTask) -> bool:
        """Run what is ready, one after another. Answers whether the last one waits for something."""
        ready, task = self._ready, lane.task
        # Counted in the same words as below: what an expression itself holds differs between versions of Python.
        alone = getrefcount(task)
        while ready or self._refill():
            run = lane.run = ready.popleft()
            context = Context()
            report: Report | None
            try:
                steps = self._steps(run)
                waits_for = context.run(steps.send, None)
            except StopIteration as e:
                report = e.value
            except BaseException as e:
                report = _odd(run, e)
            else:
                lane.context, lane.steps, lane.waits_for = context, steps, waits_for
                return True
            self._end(run, report)
            # Cancelled, or in somebody's hands who may cancel it later: that must not meet the next handler.
            if task.cancelling() or getrefcount(task) > alone:
                break
            if run.began is not None and run.began > self._until:
                break
        return False

    def _steps(self, run: Attempt) -> Steps:
        if run.stop is not None or run.assignment.policy.durable_start or not run.is_sure():
            return self._carefully(run)
        run.begin()
        return call_handler(self._app, run.task, run.context(), call, run.ticket(), run.more)

    async def _carefully(self, run: Attempt) -> Report | None:
        if run.stop is None:
            await asyncio.to_thread(run.may_begin)
        if run.stop is not None:
            return run.unbegun()
        run.begin()
        return await call_handler(self._app, run.task, run.context(), call, run.ticket(), run.more)

    def _end(self, run: Attempt, report: Report | None) -> None:
        run.over = True
        self._untold.append((run, report))
        self._over.append(run)
        if not self._turn_ends:
            # Those that end in one turn of the loop are told together.
            self._turn_ends, self._until = True, monotonic() + TURN_S
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_ends = False
        self.tell()
        self._refill()
        self._widen()

    def _refill(self) -> bool:
        """Give the places of those that have ended to the next. Answers whether something is ready."""
        if self._over:
            over, self._over = self._over, []
            self._ready.extend(self._follow(over))
        return bool(self._ready)


class SharedTask:
    """One asyncio task, and the handler that it runs or waits for."""

    __slots__ = ("_heard", "_loop", "context", "is_free", "run", "steps", "task", "waits_for")

    run: Attempt
    task: asyncio.Task[None]
    context: Context
    steps: Steps
    waits_for: Any

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.is_free = True
        self._heard: str | None = None

    def interrupt(self) -> None:
        """Have its handler cancelled, from any thread."""
        with suppress(RuntimeError):  # The loop is closed: nothing runs there any more.
            self._loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Cancel its handler, once for each reason: a second time would hit one that is tidying up."""
        if not self.run.over and self._heard != self.run.stop:
            self._heard = self.run.stop
            self.task.cancel()


@coroutine
def _rest(context: Context, steps: Steps, waits_for: Any) -> Generator[Any, Any, Report | None]:
    """Go on with a coroutine that has begun, each step of it in its own context."""
    while True:
        step: Callable[[Any], Any] = steps.send
        try:
            given = yield waits_for
        except GeneratorExit:
            context.run(steps.close)
            raise
        except BaseException as e:
            step, given = steps.throw, e
        try:
            waits_for = context.run(step, given)
        except StopIteration as e:
            report: Report | None = e.value
            return report
        finally:
            # It may be an error, whose traceback would keep this frame alive.
            del given


def _odd(run: Attempt, error: BaseException) -> Report:
    """The report of an attempt that told nothing itself."""
    if isinstance(error, asyncio.CancelledError) and (run.began is None or run.stop is not None):
        # While its start was written, so that its handler was never called; or while a hook was told of its error.
        return run.unbegun()
    return failure(error, run.ticket())
