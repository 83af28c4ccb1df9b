"""The same client with `await`: tasks, jobs and waiting for `async` programs.

Owns the hop to a thread for each call, and one thread for all that wait. What a call does is in
job.py and tasks.py.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, ref

from onetray.app.gather_submits import gathering_of
from onetray.app.job import Job
from onetray.domain.errors import NotYet
from onetray.domain.lifecycle import FLOW, TASK

if TYPE_CHECKING:
    from onetray.app.flows import FlowDefinition
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.flow import Flow, Progress
    from onetray.domain.task import Blocker, Event, LogLine
    from onetray.domain.task import Task as TaskView
    from onetray.notify.wake import Wake

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncTask(Generic[P, R]):
    """A task whose submits are awaited."""

    def __init__(self, task: TaskDefinition[P, R]) -> None:
        self._task = task

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        return (await self._send([self._task.command(args, kwargs)]))[0]

    async def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[AsyncJob[R]]:
        task, listed = self._task, list(calls)
        if task.given.get("connection") is not None:
            return await self._send(task.commands(listed))
        return [AsyncJob(job) for job in await asyncio.to_thread(task.submit_many, listed)]

    async def _send(self, commands: list[Any]) -> list[AsyncJob[R]]:
        task = self._task
        return [AsyncJob(job) for job in await _submit(task.app, commands, task.given.get("connection"), task)]


class AsyncFlow:
    """A flow whose submits are awaited."""

    def __init__(self, flow: FlowDefinition[Any]) -> None:
        self._flow = flow

    async def submit(self, config: Any = None, *, connection: Any = None, **options: Any) -> AsyncJob[Any]:
        command = self._flow.command(config, options)
        return AsyncJob((await _submit(self._flow.app, [command], connection, None))[0])


async def _submit(
    app: Onetray, commands: list[Any], connection: Any, task: TaskDefinition[Any, R] | None
) -> list[Job[R]]:
    if connection is None and len(commands) == 1:
        return [app.job_of(await gathering_of(app.engine).call(commands[0]), task)]
    if connection is None:
        return await asyncio.to_thread(app.submit_all, commands, None, task)
    return await app.submit_all_on(connection, commands, task)


class AsyncJob(Generic[R]):
    """A job whose questions are awaited: the same names as Job's."""

    def __init__(self, job: Job[R]) -> None:
        self.job, self.id, self.repeated = job, job.id, job.repeated

    def __repr__(self) -> str:
        return repr(self.job)

    async def state(self) -> str:
        return (await self.view()).state

    async def view(self) -> TaskView | Flow:
        return await asyncio.to_thread(self.job.view)

    async def wait(self, timeout_s: float | None = None) -> str:
        machine, bell = FLOW if self.job.entity == "flow" else TASK, notifier_of(self.job.app.engine.wake)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seen = bell.generation
            state = await self.state()
            if state in machine.terminal:
                return state
            left = bell.poll_s if until is None else min(bell.poll_s, until - time.monotonic())
            if left <= 0:
                raise NotYet(f"job {self.id} is still {state} after {timeout_s} s", job=self.id, timeout_s=timeout_s)
            await bell.wait(seen, left)

    async def result(self, timeout_s: float | None = None) -> R:
        await self.wait(timeout_s)
        return await asyncio.to_thread(self.job.outcome)

    async def results(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.job.results)

    async def progress(self) -> Progress:
        return await asyncio.to_thread(self.job.progress)

    def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        return self._pages(self.job.events_after, lambda event: event.id, follow)

    def logs(self, *, follow: bool = False) -> AsyncIterator[LogLine]:
        return self._pages(self.job.logs_after, lambda line: line.cursor, follow)

    async def _pages(
        self, read: Callable[[int], list[T]], cursor_of: Callable[[T], int], follow: bool
    ) -> AsyncIterator[T]:
        """The same as Job's, but what waits is no thread: one that nobody waits for any more could not be ended."""
        bell, after = notifier_of(self.job.app.engine.wake), 0
        while True:
            seen, over = bell.generation, not follow or await asyncio.to_thread(lambda: self.job.over)
            page = await asyncio.to_thread(read, after)
            for item in page:
                yield item
            if page:
                after = cursor_of(page[-1])
            elif over or bell.closed:
                return
            else:
                await bell.wait(seen, bell.poll_s)

    async def explain(self) -> list[Blocker]:
        return await asyncio.to_thread(self.job.explain)

    async def cancel(self, *, hard: bool = False, by: str = "anonymous") -> str:
        return await asyncio.to_thread(self.job.cancel, hard=hard, by=by)

    async def resume(self, input: Any = None, *, by: str = "anonymous") -> str:
        return await asyncio.to_thread(self.job.resume, input, by=by)

    async def retry(self, *, by: str = "anonymous") -> AsyncJob[R]:
        return AsyncJob(await asyncio.to_thread(self.job.retry, by=by))


class LoopNotifier:
    """One thread that waits for the wake-up, for all coroutines that do."""

    def __init__(self, wake: Wake) -> None:
        # Weakly: it is kept for as long as the wake-up is, and must not be what keeps it.
        self._of = ref(wake)
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def _wake(self) -> Wake:
        wake = self._of()
        assert wake is not None
        return wake

    @property
    def generation(self) -> int:
        return self._wake.generation

    @property
    def closed(self) -> bool:
        return self._wake.closed

    @property
    def poll_s(self) -> float:
        return self._wake.poll_s

    async def wait(self, seen: int, timeout_s: float) -> None:
        rung = asyncio.Event()
        place = (asyncio.get_running_loop(), rung)
        with self._changed:
            self._waiting.add(place)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onetray-bell", daemon=True)
                contextvars.Context().run(self._thread.start)
        try:
            # What was written before this coroutine stood in line is not told again.
            if self._wake.generation == seen:
                await asyncio.wait_for(rung.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            with self._changed:
                self._waiting.discard(place)

    def _run(self) -> None:
        wake = self._wake
        seen = wake.generation
        while not wake.closed:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting, timeout=1.0)
            now = wake.wait(seen, 0.5) if self._waiting else seen
            if now != seen:
                seen = now
                with self._changed:
                    ringing, self._waiting = self._waiting, set()
                for loop, rung in ringing:
                    _call_on_loop(loop, rung.set)


def _call_on_loop(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(ring)
    except RuntimeError:
        return  # The loop was closed: nobody waits on it any more.


_notifiers: WeakKeyDictionary[Wake, LoopNotifier] = WeakKeyDictionary()


def notifier_of(wake: Wake) -> LoopNotifier:
    """The bell of an engine's wake-up: one for all."""
    return _notifiers.setdefault(wake, LoopNotifier(wake))
