"""Calls the handlers of a test in the thread of the test, one after another.

Owns a private event loop and the app's lifespan. Runs an attempt with the worker's own code: worker/call_handler.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onetray.worker.app_loader import Lifespan
from onetray.worker.call_batch import TaskOfBatch, call_batch
from onetray.worker.call_handler import call, call_handler, drive

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.commands import Report
    from onetray.worker.attempt import Attempt


class InlineExecutor:
    def __init__(self, app: Onetray, resources: Any = None) -> None:
        self._app, self._given_resources = app, resources
        self._loop, self._loop_lock = asyncio.new_event_loop(), threading.Lock()
        self._lifespan: Lifespan | None = None
        self._resources: Any = None

    def run(self, attempts: Sequence[Attempt]) -> tuple[Sequence[Report | None], BaseException | None]:
        """Run one call: of an attempt, or of a batch. Returns what a worker would report for each, and the first error
        of the function or a hook."""
        resources = self._resources_for_handler()
        for attempt in attempts:
            attempt.resources = resources
        raised: list[BaseException] = []
        if inspect.iscoroutinefunction(attempts[0].task.function):
            reports = self._run_until_complete(self._call_handler(attempts, _recording(call, raised)))
        else:
            reports = drive(self._call_handler(attempts, _recording(self._call_here, raised)))
        return reports, raised[0] if raised else None

    def close(self) -> None:
        """End the lifespan and close the loop."""
        try:
            if self._lifespan is not None:
                self._run_until_complete(self._lifespan.end())
        finally:
            self._loop.close()

    def _resources_for_handler(self) -> Any:
        """The value for ctx.resources. Enters the lifespan on the first call."""
        if self._given_resources is not None or self._app.lifespan_of is None:
            return self._given_resources
        if self._lifespan is None:
            lifespan = Lifespan(self._app.lifespan_of)
            self._resources = self._run_until_complete(lifespan.begin())
            self._lifespan = lifespan
        return self._resources

    async def _call_handler(
        self, attempts: Sequence[Attempt], call_function: Callable[..., Any]
    ) -> Sequence[Report | None]:
        task, tasks = attempts[0].task, [TaskOfBatch(a.context(), a.ticket(), a.more) for a in attempts]
        if task.batch is not None:
            return await call_batch(self._app, task, tasks, call_function)
        return [await call_handler(self._app, task, tasks[0].ctx, call_function, attempts[0], tasks[0].more)]

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function outside of the loop, so that it can run a loop of its own."""
        returned = function(*args, **kwargs)
        return self._run_until_complete(returned) if inspect.isawaitable(returned) else returned

    def _run_until_complete(self, awaitable: Any) -> Any:
        """Run an awaitable, even if a loop is running already: in an async test, or in a task that submits inline."""
        # The private loop may be the one that is blocked by this call.
        if not self._loop_lock.acquire(blocking=False):
            with contextlib.closing(asyncio.new_event_loop()) as new_loop:
                return _run(new_loop, awaitable)
        try:
            return _run(self._loop, awaitable)
        finally:
            self._loop_lock.release()


def _recording(call_function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """Wrap `call_function` so that it also records the errors that functions raise."""

    async def recording(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await call_function(function, *args, **kwargs)
        except BaseException as e:
            raised.append(e)
            raise

    return recording


def _run(loop: asyncio.AbstractEventLoop, awaitable: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(awaitable)
    return _run_in_thread(lambda: loop.run_until_complete(awaitable))


def _run_in_thread(step: Callable[[], Any]) -> Any:
    """Run a function in a new thread, where no loop runs, and wait for it."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(step())
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="onetray-testing")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
