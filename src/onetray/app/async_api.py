"""The `async` API of tasks, flows and jobs.

Each call runs its synchronous counterpart of tasks.py or job.py in a thread. One further thread waits for wake-ups on
behalf of all coroutines.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack
from weakref import WeakKeyDictionary, ref

from onetray.app.failure import not_ended_yet
from onetray.app.gather_submits import gathering_of
from onetray.app.job import Job
from onetray.app.rules import FlowOptions, Options
from onetray.domain.lifecycle import FLOW, TASK

if TYPE_CHECKING:
    from onetray.app.flows import FlowDefinition
    from onetray.app.job_parts import Children
    from onetray.app.onetray import Onetray
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.flow import Flow, FlowError, Progress
    from onetray.domain.task import Blocker, Event, LogLine
    from onetray.domain.task import Task as TaskView
    from onetray.notify.wake import Wake

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AsyncOnetray:
    """The app's jobs, with `await`."""

    def __init__(self, app: Onetray) -> None:
        self._app = app

    async def job(self, id: str) -> AsyncJob[Any]:
        """The job with this id. Raises NotFound."""
        return AsyncJob(await asyncio.to_thread(self._app.job, id))

    async def submit(
        self, task: str | TaskDefinition[Any, R], /, payload: dict[str, Any] | None = None, **options: Unpack[Options]
    ) -> AsyncJob[R]:
        """Submit a task, or the task of a kind, with its arguments as a dict: see Onetray.submit."""
        definition = self._app.definition(task)
        return await definition.options(**options).aio.submit(**(payload or {}))


class AsyncTask(Generic[P, R]):
    """A task whose submits are awaited."""

    def __init__(self, task: TaskDefinition[P, R]) -> None:
        self._task = task

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """Submit the task to its queue. It is durable when this returns."""
        return (await self._send([self._task.command(args, kwargs)]))[0]

    async def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[AsyncJob[R]]:
        """Submit one task for each dict of arguments: see TaskDefinition.submit_many."""
        task, calls = self._task, list(calls)
        if task.submit_options.get("connection") is not None:
            return await self._send(task.commands(calls))
        return [AsyncJob(job) for job in await asyncio.to_thread(task.submit_many, calls)]

    async def _send(self, commands: list[Any]) -> list[AsyncJob[R]]:
        task = self._task
        return [AsyncJob(job) for job in await _submit(task.app, commands, task.submit_options.get("connection"), task)]


class AsyncFlow(Generic[C, R]):
    """A flow whose submits are awaited."""

    def __init__(self, flow: FlowDefinition[C, R]) -> None:
        self._flow = flow

    async def submit(
        self, config: C | dict[str, Any] | None = None, *, connection: Any = None, **options: Unpack[FlowOptions]
    ) -> AsyncJob[R]:
        """Check the config and submit the flow. It is durable when this returns."""
        command = self._flow.command(config, options)
        return AsyncJob((await _submit(self._flow.app, [command], connection, self._flow))[0])


async def _submit(
    app: Onetray, commands: list[Any], connection: Any, of: TaskDefinition[Any, R] | FlowDefinition[Any, R]
) -> list[Job[R]]:
    if connection is None and len(commands) == 1:
        return [app.job_of(await gathering_of(app.engine).call(commands[0]), of)]
    if connection is None:
        return await asyncio.to_thread(app.submit_all, commands, None, of)
    return await app.submit_all_on(connection, commands, of)


class AsyncJob(Generic[R]):
    """A job with the methods of Job as coroutines; the properties of Job that read the database are coroutines, too."""

    def __init__(self, job: Job[R]) -> None:
        self.job, self.app, self.id, self.entity, self.repeated = job, job.app, job.id, job.entity, job.repeated
        self.window = job.window

    def __repr__(self) -> str:
        return repr(self.job)

    async def state(self) -> str:
        """Its state now."""
        return (await self.view()).state

    async def over(self) -> bool:
        """Whether the job is in a terminal state."""
        return self._ends_in(await self.state())

    async def view(self) -> TaskView | Flow:
        """The whole Task or Flow as it is now."""
        return await asyncio.to_thread(self.job.view)

    async def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the job has ended, and return its final state. Raises NotYet after the timeout."""
        async for state in self.states(timeout_s):
            if self._ends_in(state):
                return state
        raise await asyncio.to_thread(not_ended_yet, self.job, state, timeout_s)

    async def states(self, timeout_s: float | None = None) -> AsyncIterator[str]:
        """Yield the state now and after every wake-up, until the timeout, even after the job has ended."""
        notifier = notifier_of(self.app.engine.wake)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seen = notifier.generation
            yield await self.state()
            left = notifier.poll_s if until is None else min(notifier.poll_s, until - time.monotonic())
            if left <= 0 or notifier.closed:
                return
            await notifier.wait(seen, left)

    def _ends_in(self, state: str) -> bool:
        return state in (FLOW if self.entity == "flow" else TASK).terminal

    async def result(self, timeout_s: float | None = None) -> R:
        """Wait for the result and return it. Raises JobFailed if the job ended without one."""
        await self.wait(timeout_s)
        return await self.outcome()

    async def outcome(self) -> R:
        """The result of a job that has ended. Raises JobFailed, which says why, if there is none."""
        return await asyncio.to_thread(self.job.outcome)

    async def results(self) -> dict[str, Any]:
        """The result of each stage of a flow, by stage name, also before the end."""
        return await asyncio.to_thread(self.job.results)

    async def progress(self) -> Progress:
        """How much of it is done: see Job.progress."""
        return await asyncio.to_thread(self.job.progress)

    async def children(self, *, limit: int = 1_000) -> Children:
        """The stages and tasks of a flow, and the jobs that the job's handlers submitted: see Job.children."""
        return await asyncio.to_thread(self.job.children, limit=limit)

    def events(self, *, follow: bool = False) -> AsyncIterator[Event]:
        """Its events, in order; with `follow`, until the job has ended."""
        return self._pages(self.job.events_after, lambda event: event.id, follow)

    async def events_after(self, cursor: int) -> list[Event]:
        """One page of its events, after this event id."""
        return await asyncio.to_thread(self.job.events_after, cursor)

    def logs(self, *, follow: bool = False) -> AsyncIterator[LogLine]:
        """The log lines of its handlers; with `follow`, until the job has ended."""
        return self._pages(self.job.logs_after, lambda line: line.cursor, follow)

    async def logs_after(self, cursor: int) -> list[LogLine]:
        """One page of its log, after this cursor."""
        return await asyncio.to_thread(self.job.logs_after, cursor)

    async def _pages(
        self, read: Callable[[int], list[T]], cursor_of: Callable[[T], int], follow: bool
    ) -> AsyncIterator[T]:
        """As Job._pages, but it waits in the coroutine: a thread could not be cancelled with its caller."""
        notifier, after = notifier_of(self.app.engine.wake), 0
        while True:
            seen, over = notifier.generation, not follow or await self.over()
            page = await asyncio.to_thread(read, after)
            for item in page:
                yield item
            if page:
                after = cursor_of(page[-1])
            elif over or notifier.closed:
                return
            else:
                await notifier.wait(seen, notifier.poll_s)

    async def errors(self) -> list[FlowError]:
        """What went wrong: see Job.errors."""
        return await asyncio.to_thread(self.job.errors)

    async def explain(self) -> list[Blocker]:
        """Why the job does not run: see Job.explain."""
        return await asyncio.to_thread(self.job.explain)

    async def cancel(self, *, hard: bool = False, by: str = "anonymous") -> str:
        """Request cancellation, or with `hard` cancel at once. Returns the state."""
        return await asyncio.to_thread(self.job.cancel, hard=hard, by=by)

    async def resume(self, input: Any = None, *, by: str = "anonymous") -> str:
        """Resume a paused flow, or a paused task with this input. Returns the state."""
        return await asyncio.to_thread(self.job.resume, input, by=by)

    async def approve(
        self, stage: str | None = None, *, input: Any = None, note: str | None = None, by: str = "anonymous"
    ) -> str:
        """Approve the stage of a flow that waits for it: see Job.approve."""
        return await asyncio.to_thread(self.job.approve, stage, input=input, note=note, by=by)

    async def reject(self, stage: str | None = None, *, note: str | None = None, by: str = "anonymous") -> str:
        """Reject the stage of a flow that waits for approval: see Job.reject."""
        return await asyncio.to_thread(self.job.reject, stage, note=note, by=by)

    async def answer(self, input: Any, *, task: str | None = None, by: str = "anonymous") -> str:
        """Resume the task that waits for input, with this input: see Job.answer."""
        return await asyncio.to_thread(self.job.answer, input, task=task, by=by)

    async def retry(
        self,
        *,
        from_stage: str | None = None,
        delay_s: float = 0.0,
        keep_attempts: bool = False,
        by: str = "anonymous",
    ) -> AsyncJob[R]:
        """Run an ended job again, as a new job linked to this one: see Job.retry."""
        again = await asyncio.to_thread(
            self.job.retry, from_stage=from_stage, delay_s=delay_s, keep_attempts=keep_attempts, by=by
        )
        return AsyncJob(again)

    async def delete(self, *, by: str = "anonymous") -> None:
        """Delete the ended job with everything that belongs to it."""
        await asyncio.to_thread(self.job.delete, by=by)


class LoopNotifier:
    """One thread that waits for the engine's wake-ups, on behalf of all waiting coroutines."""

    def __init__(self, wake: Wake) -> None:
        # A weak reference, so that the entry in _notifiers does not keep its own key alive.
        self._wake_ref = ref(wake)
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def _wake(self) -> Wake:
        wake = self._wake_ref()
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
        woken = asyncio.Event()
        waiter = (asyncio.get_running_loop(), woken)
        with self._changed:
            self._waiting.add(waiter)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onetray-notifier", daemon=True)
                contextvars.Context().run(self._thread.start)
        try:
            # A write before this coroutine was registered has not set its event.
            if self._wake.generation == seen:
                await asyncio.wait_for(woken.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            with self._changed:
                self._waiting.discard(waiter)

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
                    waiters, self._waiting = self._waiting, set()
                for loop, woken in waiters:
                    _call_on_loop(loop, woken.set)


def _call_on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return  # The loop is closed, and no coroutine waits on it.


_notifiers: WeakKeyDictionary[Wake, LoopNotifier] = WeakKeyDictionary()


def notifier_of(wake: Wake) -> LoopNotifier:
    """The notifier of an engine, shared by all its jobs."""
    return _notifiers.setdefault(wake, LoopNotifier(wake))
