"""Where handlers run: on the event loop, in threads, in child processes; no more at once than there are places.

Owns the places and the loop. What is claimed ahead waits here in its order; whoever ends lets the next one begin.
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
from onetray.worker.async_executor import AsyncExecutor, Ended
from onetray.worker.attempt import LOST
from onetray.worker.call_handler import call_handler, drive, failure

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.worker.attempt import Attempt
    from onetray.worker.process_pool import ProcessPool

logger = logging.getLogger("onetray.worker")


class Executor:
    def __init__(self, app: Onetray, concurrency: int, children: ProcessPool, ended: Ended) -> None:
        self._app, self.concurrency, self._children, self._ended = app, concurrency, children, ended
        self._lock = threading.Lock()
        self.waiting: deque[Attempt] = deque()
        self._low = 0
        """From so few that wait on, whoever claims is told of each place that becomes free."""
        self.running: set[Attempt] = set()
        self.finished = 0
        self.changed = threading.Condition()
        """Told when a place has become free, and half of what was claimed ahead is used."""
        self.resources: Any = None
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="onetray-loop", daemon=True)
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._for_threads: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._lifespan = Lifespan(app.lifespan_of)
        self.lanes = AsyncExecutor(app, self.loop, self._follow, ended, concurrency)

    def open(self) -> None:
        """Start the loop, and what the app's lifespan brings."""
        self._loop_thread.start()
        try:
            self.resources = self.on_loop(self._lifespan.begin())
        except BaseException:
            self._end_loop(1.0)
            raise

    def on_loop(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop, from another thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self, patience_s: float = 5.0) -> None:
        """End the lifespan and the loop. Threads whose handlers do not stop are left: they are daemons."""
        for _ in self._threads:
            self._for_threads.put(None)
        ending = asyncio.run_coroutine_threadsafe(self._end_lifespan(), self.loop)
        try:
            ending.result(patience_s)
        except Exception:
            logger.exception("the lifespan did not end well")
        self._end_loop(patience_s)

    def _end_loop(self, patience_s: float) -> None:
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._loop_thread.join(patience_s)

    async def _end_lifespan(self) -> None:
        await self._lifespan.end()
        await self.loop.shutdown_default_executor()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except BaseException as e:
                # asyncio lets SystemExit and the like of any of its tasks end the loop: ours is not theirs to end.
                logger.error("a task that a handler left on the loop raised %r; the event loop goes on", e)
        self.loop.close()

    @property
    def loop_ident(self) -> int:
        return self._loop_thread.ident or 0

    def admit(self, runs: Iterable[Attempt]) -> None:
        """Take in what was claimed. It begins as soon as there is a place."""
        with self._lock:
            self.waiting.extend(runs)
            on_loop, stopped = self._seat()
            self._low = len(self.waiting) // 2
        self._begin(on_loop, stopped)

    def waits_since(self) -> float:
        """Since when the first of those waits that have not begun."""
        try:
            return self.waiting[0].taken_at
        except IndexError:
            return float("inf")

    def take_back(self, taken_before: float = float("inf")) -> list[Attempt]:
        """What was taken before then and has not begun; it will not."""
        with self._lock:
            back = [run for run in self.waiting if run.taken_at < taken_before]
            self.waiting = deque(run for run in self.waiting if run.taken_at >= taken_before)
        return [run for run in back if run.stop != LOST]

    def _seat(self) -> tuple[list[Attempt], list[Attempt]]:
        """Give free places to those that wait. Answers those for the loop, and those that will not begin."""
        on_loop: list[Attempt] = []
        stopped: list[Attempt] = []
        while self.waiting and len(self.running) < self.concurrency:
            run = self.waiting.popleft()
            if run.stop is not None:
                stopped.append(run)
                continue
            self.running.add(run)
            run.resources = self.resources
            if run.task.isolation == ASYNC:
                on_loop.append(run)
            else:
                self._to_thread(run)
        return on_loop, stopped

    def _begin(self, on_loop: list[Attempt], stopped: list[Attempt]) -> None:
        self._unbegun(stopped)
        if on_loop:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nothing begins any more.
                self.loop.call_soon_threadsafe(self.lanes.take, on_loop)

    def _unbegun(self, stopped: list[Attempt]) -> None:
        for run in stopped:
            run.over = True
        if stopped:
            self._ended([(run, run.unbegun()) for run in stopped])

    def _follow(self, over: list[Attempt]) -> list[Attempt]:
        """Give the places of those that have ended to the next. Answers those that begin on the loop."""
        with self._lock:
            self.running.difference_update(over)
            self.finished += len(over)
            on_loop, stopped = self._seat()
            is_low = len(self.waiting) <= self._low
        self._unbegun(stopped)
        if is_low:
            with self.changed:
                self.changed.notify()
        return on_loop

    # In threads.

    def _to_thread(self, run: Attempt) -> None:
        """Hand it to a thread: an idle one, or a new one. There are never more than places."""
        if self._idle > 0:
            self._idle -= 1
        else:
            thread = threading.Thread(target=self._thread, name=f"onetray-handler-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._for_threads.put(run)

    def _thread(self) -> None:
        while True:
            run = self._for_threads.get()
            if run is None:
                return
            try:
                report = self._in_thread(run)
            except BaseException as e:
                report = failure(e, run.ticket())
            with self._lock:
                self._idle += 1
            # Reported before its place is free: whoever waits until all is idle finds nothing unreported.
            run.over = True
            self._ended([(run, report)])
            self._begin(self._follow([run]), [])

    def _in_thread(self, run: Attempt) -> Report | None:
        if not run.may_begin():
            return run.unbegun()
        if run.task.isolation == PROCESS:
            return self._children.attempt(run)
        run.begin()
        return drive(call_handler(self._app, run.task, run.context(), self._call_here, run.ticket(), run.more))  # type: ignore[no-any-return]

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this thread. One that is async runs on the loop, and is waited for here."""
        given = function(*args, **kwargs)
        return self.on_loop(given) if inspect.isawaitable(given) else given

    def wait_until_idle(self, until: float) -> bool:
        """Wait for all that runs, and have its ends reported. Answers whether it ended in time."""
        with self.changed:
            while (self.running or self.waiting) and (left := until - time.monotonic()) > 0:
                self.changed.wait(min(left, 0.1))
            is_idle = not self.running and not self.waiting
        self.lanes.tell()
        return is_idle
