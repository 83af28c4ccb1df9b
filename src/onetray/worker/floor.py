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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onetray.commands import Report
from onetray.declared import ASYNC, PROCESS
from onetray.worker.attempt import attempt, call, drive, failure
from onetray.worker.lifespan import Lifespan
from onetray.worker.run import LOST

if TYPE_CHECKING:
    from onetray.app import Onetray
    from onetray.worker.children import Children
    from onetray.worker.run import Run

logger = logging.getLogger("onetray.worker")

Ended = Callable[[Sequence[tuple["Run", Report | None]]], None]


class Floor:
    def __init__(self, app: Onetray, concurrency: int, children: Children, ended: Ended) -> None:
        self._app, self.concurrency, self._children, self._ended = app, concurrency, children, ended
        self._lock = threading.Lock()
        self.waiting: deque[Run] = deque()
        self.running: set[Run] = set()
        self.finished = 0
        self.changed = threading.Condition()
        """Told when a place has become free."""
        self.resources: Any = None
        self.loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._run_loop, name="onetray-loop", daemon=True)
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._for_threads: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._lifespan = Lifespan(app.lifespan_of)
        self._handles: dict[asyncio.Task[Report | None], Run] = {}
        self._off: list[tuple[Run, Report | None]] = []
        """What has ended on the loop since it last looked."""

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

    def admit(self, runs: Iterable[Run]) -> None:
        """Take in what was claimed. It begins as soon as there is a place."""
        with self._lock:
            self.waiting.extend(runs)
        self._fill()

    def waits_since(self) -> float:
        """Since when the first of those waits that have not begun."""
        try:
            return self.waiting[0].taken_at
        except IndexError:
            return float("inf")

    def take_back(self, taken_before: float = float("inf")) -> list[Run]:
        """What was taken before then and has not begun; it will not."""
        with self._lock:
            back = [run for run in self.waiting if run.taken_at < taken_before]
            self.waiting = deque(run for run in self.waiting if run.taken_at >= taken_before)
        return [run for run in back if run.stop != LOST]

    def _fill(self) -> None:
        on_loop: list[Run] = []
        stopped: list[Run] = []
        with self._lock:
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
        for run in stopped:
            run.over = True
            self._ended([(run, run.unbegun())])
        if on_loop:
            self._call_on_loop(self._begin, on_loop)

    def _call_on_loop(self, function: Callable[..., Any], *args: Any) -> None:
        if threading.current_thread() is self._loop_thread:
            function(*args)
            return
        with contextlib.suppress(RuntimeError):  # The loop is closed: nothing begins any more.
            self.loop.call_soon_threadsafe(function, *args)

    def _done(self, ended: Sequence[tuple[Run, Report | None]]) -> None:
        with self._lock:
            for run, _ in ended:
                run.over = True
                self.running.discard(run)
            self.finished += len(ended)
        self._ended(ended)
        self._fill()
        with self.changed:
            self.changed.notify()

    # On the loop.

    def _begin(self, runs: list[Run]) -> None:
        for run in runs:
            handle = self.loop.create_task(self._on_loop(run))
            self._handles[handle] = run
            handle.add_done_callback(self._off_loop)
            run.interrupt = partial(self._call_on_loop, handle.cancel)
            if run.stop is not None:
                handle.cancel()

    async def _on_loop(self, run: Run) -> Report | None:
        if run.assignment.policy.durable_start:
            await asyncio.to_thread(run.may_begin)
        if run.stop is not None:
            return run.unbegun()
        run.begin()
        return await attempt(self._app, run.task, run.context(), call, run.ticket(), run.more)

    def _off_loop(self, handle: asyncio.Task[Report | None]) -> None:
        run = self._handles.pop(handle)
        if handle.cancelled():
            # Before its first step, or while its start was written: its handler was never called.
            report: Report | None = run.unbegun()
        elif (error := handle.exception()) is not None:
            report = failure(error, run.ticket())
        else:
            report = handle.result()
        # Those that end in one turn of the loop are told together.
        if not self._off:
            self.loop.call_soon(self._tell_off)
        self._off.append((run, report))

    def _tell_off(self) -> None:
        off, self._off = self._off, []
        self._done(off)

    # In threads.

    def _to_thread(self, run: Run) -> None:
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
            self._done([(run, report)])

    def _in_thread(self, run: Run) -> Report | None:
        if not run.may_begin():
            return run.unbegun()
        if run.task.isolation == PROCESS:
            return self._children.attempt(run)
        run.begin()
        return drive(attempt(self._app, run.task, run.context(), self._call_here, run.ticket(), run.more))  # type: ignore[no-any-return]

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in this thread. One that is async runs on the loop, and is waited for here."""
        given = function(*args, **kwargs)
        return self.on_loop(given) if inspect.isawaitable(given) else given

    def wait_until_idle(self, until: float) -> bool:
        """Wait for all that runs. Answers whether it ended in time."""
        with self.changed:
            while self.running or self.waiting:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, 0.1))
        return True
