"""Run handlers on the event loop, in threads or in child processes, at most `concurrency` at once.

Owns the event loop and the threads. Prefetched attempts wait here in order; each handler that ends starts the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onetray.app.tasks import ASYNC, PROCESS
from onetray.domain.commands import Report
from onetray.worker.app_loader import Lifespan
from onetray.worker.async_executor import AsyncExecutor, OnEnded
from onetray.worker.attempt import LOST, Attempt
from onetray.worker.attempt_batch import AttemptBatch, Outcome
from onetray.worker.call_batch import call_batch
from onetray.worker.call_handler import call, call_handler, drive, failure

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.worker.process_pool import ProcessPool

logger = logging.getLogger("onetray.worker")

Work = Attempt | AttemptBatch
"""What one call of a handler runs."""


class Executor:
    def __init__(self, app: Onetray, concurrency: int, process_pool: ProcessPool, on_ended: OnEnded) -> None:
        self._app, self.concurrency, self._process_pool, self._on_ended = app, concurrency, process_pool, on_ended
        self._lock = threading.Lock()
        self.waiting: deque[Work] = deque()
        self._refill_below = 0
        """Once no more than this many attempts wait, the claimer is woken whenever a handler ends."""
        self.running: set[Work] = set()
        self.finished = 0
        self.changed = threading.Condition()
        """Notified when a handler has ended and half of the prefetched attempts have begun."""
        self.resources: Any = None
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="onetray-loop", daemon=True)
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._idle_threads = 0
        self._thread_queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._batch_tasks: set[asyncio.Task[None]] = set()
        """Strong references: asyncio keeps only weak ones."""
        self._lifespan = Lifespan(app.lifespan_of)
        self.async_executor = AsyncExecutor(app, self.loop, self._finish, on_ended, concurrency)

    def open(self) -> None:
        """Start the loop and enter the app's lifespan."""
        self._loop_thread.start()
        try:
            self.resources = self.on_loop(self._lifespan.begin())
        except BaseException:
            self._end_loop(1.0)
            raise

    def on_loop(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop, from another thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the lifespan and the loop. Threads whose handlers do not stop are left running (they are daemons)."""
        for _ in self._threads:
            self._thread_queue.put(None)
        ending = asyncio.run_coroutine_threadsafe(self._end_lifespan(), self.loop)
        try:
            ending.result(timeout_s)
        except Exception:
            logger.exception("the lifespan failed to end")
        self._end_loop(timeout_s)

    def _end_loop(self, timeout_s: float) -> None:
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._loop_thread.join(timeout_s)

    async def _end_lifespan(self) -> None:
        await self._lifespan.end()
        await self.loop.shutdown_default_executor()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except BaseException as e:
                # SystemExit and KeyboardInterrupt in any asyncio task stop the loop.
                logger.error("an asyncio task that a handler left behind raised %r; the event loop goes on", e)
        self.loop.close()

    @property
    def loop_ident(self) -> int:
        return self._loop_thread.ident or 0

    def admit(self, attempts: Iterable[Work]) -> None:
        """Queue claimed attempts, or batches of them. Each begins as soon as fewer than `concurrency` are running."""
        with self._lock:
            self.waiting.extend(attempts)
            on_loop, stopped = self._start_waiting()
            self._refill_below = len(self.waiting) // 2
        self._begin(on_loop, stopped)

    def oldest_claimed_at(self) -> float:
        """When the oldest waiting attempt was claimed; infinite if none waits."""
        try:
            return self.waiting[0].claimed_at
        except IndexError:
            return float("inf")

    def withdraw(self, claimed_before: float = float("inf")) -> list[Attempt]:
        """Remove and return the waiting attempts that were claimed before then, except lost ones."""
        with self._lock:
            withdrawn = [work for work in self.waiting if work.claimed_at < claimed_before]
            self.waiting = deque(work for work in self.waiting if work.claimed_at >= claimed_before)
        for work in withdrawn:
            if isinstance(work, AttemptBatch):
                work.gatherer.left(begins=False)
        return [attempt for work in withdrawn for attempt in work.members if attempt.stop_reason != LOST]

    def _start_waiting(self) -> tuple[list[Attempt], list[Attempt]]:
        """Start waiting attempts in threads. Returns those for the event loop, and those to release unstarted."""
        on_loop: list[Attempt] = []
        stopped: list[Attempt] = []
        while self.waiting and len(self.running) < self.concurrency:
            attempt = self.waiting.popleft()
            if isinstance(attempt, AttemptBatch):
                self.running.add(attempt)
                self._start_batch(attempt)
                continue
            if attempt.stop_reason is not None:
                stopped.append(attempt)
                continue
            self.running.add(attempt)
            attempt.resources = self.resources
            if attempt.task.isolation == ASYNC:
                on_loop.append(attempt)
            else:
                self._start_in_thread(attempt)
        return on_loop, stopped

    def _begin(self, on_loop: list[Attempt], stopped: list[Attempt]) -> None:
        self._release_unstarted(stopped)
        if on_loop:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(self.async_executor.begin, on_loop)

    def _release_unstarted(self, stopped: list[Attempt]) -> None:
        for attempt in stopped:
            attempt.has_ended = True
        if stopped:
            self._on_ended([(attempt, attempt.release_unstarted()) for attempt in stopped])

    def _finish(self, over: Sequence[Work]) -> list[Attempt]:
        """Replace ended attempts by waiting ones. Returns those to begin on the event loop."""
        with self._lock:
            self.running.difference_update(over)
            self.finished += len(over)
            on_loop, stopped = self._start_waiting()
            is_low = len(self.waiting) <= self._refill_below
        self._release_unstarted(stopped)
        if is_low:
            with self.changed:
                self.changed.notify()
        return on_loop

    # Threads.

    def _start_in_thread(self, attempt: Work) -> None:
        """Queue an attempt for an idle thread, or start a new one: never more than `concurrency`."""
        if self._idle_threads > 0:
            self._idle_threads -= 1
        else:
            name = f"onetray-handler-{len(self._threads)}"
            thread = threading.Thread(target=self._run_thread, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._thread_queue.put(attempt)

    def _run_thread(self) -> None:
        while True:
            attempt = self._thread_queue.get()
            if attempt is None:
                return
            run_batch, run = self._run_batch_in_thread, self._run_in_thread
            ended = run_batch(attempt) if isinstance(attempt, AttemptBatch) else run(attempt)
            with self._lock:
                self._idle_threads += 1
            self._end(attempt, ended)

    def _end(self, work: Work, ended: list[Outcome]) -> None:
        # Report before _finish: when the executor is idle, every outcome has been reported.
        for attempt, _ in ended:
            attempt.has_ended = True
        self._on_ended(ended)
        self._begin(self._finish([work]), [])
        if isinstance(work, AttemptBatch):
            work.gatherer.ended()

    def _run_in_thread(self, attempt: Attempt) -> list[Outcome]:
        try:
            return [(attempt, self._call_in_thread(attempt))]
        except BaseException as e:
            return [(attempt, failure(e, attempt.ticket()))]

    def _call_in_thread(self, attempt: Attempt) -> Report | None:
        if not attempt.may_begin():
            return attempt.release_unstarted()
        if attempt.task.isolation == PROCESS:
            return self._process_pool.run(attempt)[0]
        attempt.begin()
        steps = call_handler(self._app, attempt.task, attempt.context(), self._call_here, attempt, attempt.more)
        return drive(steps)  # type: ignore[no-any-return]

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this thread. If it is async, run it on the loop and wait for it here."""
        returned = function(*args, **kwargs)
        return self.on_loop(returned) if inspect.isawaitable(returned) else returned

    # Batches.

    def _start_batch(self, batch: AttemptBatch) -> None:
        batch.gatherer.left(begins=True)
        batch.give_resources(self.resources)
        if batch.task.isolation == ASYNC:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(self._begin_batch, batch)
        else:
            self._start_in_thread(batch)

    def _begin_batch(self, batch: AttemptBatch) -> None:
        task = self.loop.create_task(self._run_batch_on_loop(batch))
        self._batch_tasks.add(task)
        task.add_done_callback(self._batch_tasks.discard)
        batch.interrupt_by(partial(self._cancel_batch, task))

    def _cancel_batch(self, task: asyncio.Task[None]) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self.loop.call_soon_threadsafe(task.cancel)

    async def _run_batch_on_loop(self, batch: AttemptBatch) -> None:
        ended: list[Outcome] = []
        try:
            ended += await asyncio.to_thread(batch.drop_unstarted)
            if batch.members:
                batch.begin()
                reports = await call_batch(self._app, batch.task, batch.tasks(), call)
                ended += zip(batch.members, reports, strict=True)
        except BaseException as e:
            ended += _broken_off(batch, e)
        batch.interrupt_by(None)
        self._end(batch, ended)

    def _run_batch_in_thread(self, batch: AttemptBatch) -> list[Outcome]:
        ended: list[Outcome] = []
        try:
            ended += batch.drop_unstarted()
            if not batch.members:
                return ended
            if batch.task.isolation == PROCESS:
                reports = self._process_pool.run(batch)
            else:
                batch.begin()
                reports = drive(call_batch(self._app, batch.task, batch.tasks(), self._call_here))
            return [*ended, *zip(batch.members, reports, strict=True)]
        except BaseException as e:
            return ended + _broken_off(batch, e)

    def wait_until_idle(self, until: float) -> bool:
        """Wait until no attempt runs or waits, and report those that ended. Returns whether that was in time."""
        with self.changed:
            while (self.running or self.waiting) and (left := until - time.monotonic()) > 0:
                self.changed.wait(min(left, 0.1))
            is_idle = not self.running and not self.waiting
        self.async_executor.report_ended()
        return is_idle


def _broken_off(batch: AttemptBatch, error: BaseException) -> list[Outcome]:
    """The outcomes of a call whose reports could not be made."""
    return [
        (a, a.release_unstarted() if a.stop_reason is not None else failure(error, a.ticket())) for a in batch.members
    ]
