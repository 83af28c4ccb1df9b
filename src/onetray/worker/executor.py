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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from onetray.app.tasks import ASYNC, PROCESS
from onetray.domain.commands import Report
from onetray.worker.app_loader import Lifespan
from onetray.worker.async_executor import AsyncExecutor, OnEnded
from onetray.worker.attempt import LOST
from onetray.worker.call_handler import call_handler, drive, failure

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.worker.attempt import Attempt
    from onetray.worker.process_pool import ProcessPool

logger = logging.getLogger("onetray.worker")


class Executor:
    def __init__(self, app: Onetray, concurrency: int, process_pool: ProcessPool, on_ended: OnEnded) -> None:
        self._app, self.concurrency, self._process_pool, self._on_ended = app, concurrency, process_pool, on_ended
        self._lock = threading.Lock()
        self.waiting: deque[Attempt] = deque()
        self._refill_below = 0
        """Once no more than this many attempts wait, the claimer is woken whenever a handler ends."""
        self.running: set[Attempt] = set()
        self.finished = 0
        self.changed = threading.Condition()
        """Notified when a handler has ended and half of the prefetched attempts have begun."""
        self.resources: Any = None
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="onetray-loop", daemon=True)
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._idle_threads = 0
        self._thread_queue: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
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

    def admit(self, attempts: Iterable[Attempt]) -> None:
        """Queue claimed attempts. Each begins as soon as fewer than `concurrency` are running."""
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
            withdrawn = [attempt for attempt in self.waiting if attempt.claimed_at < claimed_before]
            self.waiting = deque(attempt for attempt in self.waiting if attempt.claimed_at >= claimed_before)
        return [attempt for attempt in withdrawn if attempt.stop_reason != LOST]

    def _start_waiting(self) -> tuple[list[Attempt], list[Attempt]]:
        """Start waiting attempts in threads. Returns those for the event loop, and those to release unstarted."""
        on_loop: list[Attempt] = []
        stopped: list[Attempt] = []
        while self.waiting and len(self.running) < self.concurrency:
            attempt = self.waiting.popleft()
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

    def _finish(self, over: list[Attempt]) -> list[Attempt]:
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

    def _start_in_thread(self, attempt: Attempt) -> None:
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
            try:
                report = self._run_in_thread(attempt)
            except BaseException as e:
                report = failure(e, attempt.ticket())
            with self._lock:
                self._idle_threads += 1
            # Report before _finish: when the executor is idle, every outcome has been reported.
            attempt.has_ended = True
            self._on_ended([(attempt, report)])
            self._begin(self._finish([attempt]), [])

    def _run_in_thread(self, attempt: Attempt) -> Report | None:
        if not attempt.may_begin():
            return attempt.release_unstarted()
        if attempt.task.isolation == PROCESS:
            return self._process_pool.run(attempt)
        attempt.begin()
        fields, more = attempt.ticket(), attempt.more
        return drive(call_handler(self._app, attempt.task, attempt.context(), self._call_here, fields, more))  # type: ignore[no-any-return]

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this thread. If it is async, run it on the loop and wait for it here."""
        returned = function(*args, **kwargs)
        return self.on_loop(returned) if inspect.isawaitable(returned) else returned

    def wait_until_idle(self, until: float) -> bool:
        """Wait until no attempt runs or waits, and report those that ended. Returns whether that was in time."""
        with self.changed:
            while (self.running or self.waiting) and (left := until - time.monotonic()) > 0:
                self.changed.wait(min(left, 0.1))
            is_idle = not self.running and not self.waiting
        self.async_executor.report_ended()
        return is_idle
