"""Where a test's handlers are called: in the thread of the test, one after another.

Owns the private event loop and the app's lifespan. How an attempt goes is the worker's own code:
worker/call_handler.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from onetray.worker.app_loader import Lifespan
from onetray.worker.call_handler import call, call_handler, drive

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.commands import Report
    from onetray.worker.attempt import Attempt


class InlineExecutor:
    def __init__(self, app: Onetray, resources: Any = None) -> None:
        self._app, self._given = app, resources
        self._loop, self._free = asyncio.new_event_loop(), threading.Lock()
        self._lifespan: Lifespan | None = None
        self._resources: Any = None

    def attempt(self, run: Attempt) -> tuple[Report | None, BaseException | None]:
        """Run one attempt to its end: what a worker would report, and what was raised by the function or a hook."""
        run.resources = self._open()
        raised: list[BaseException] = []
        if inspect.iscoroutinefunction(run.task.function):
            report = self._wait(self._attempt(run, _noting(call, raised)))
        else:
            report = drive(self._attempt(run, _noting(self._call_here, raised)))
        return report, raised[0] if raised else None

    def close(self) -> None:
        """End the lifespan and the loop."""
        try:
            if self._lifespan is not None:
                self._wait(self._lifespan.end())
        finally:
            self._loop.close()

    def _open(self) -> Any:
        """What handlers find in ctx.resources. The lifespan begins with the first of them."""
        if self._given is not None or self._app.lifespan_of is None:
            return self._given
        if self._lifespan is None:
            lifespan = Lifespan(self._app.lifespan_of)
            self._resources = self._wait(lifespan.begin())
            self._lifespan = lifespan
        return self._resources

    def _attempt(self, run: Attempt, how: Callable[..., Any]) -> Coroutine[Any, Any, Report | None]:
        return call_handler(self._app, run.task, run.context(), how, run.ticket(), run.more)

    async def _call_here(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function outside of the loop: it may use one itself."""
        given = function(*args, **kwargs)
        return self._wait(given) if inspect.isawaitable(given) else given

    def _wait(self, awaitable: Any) -> Any:
        """Run it to its end, also where a loop runs already: in an async test, or in a task that submits inline."""
        # The private loop may be the one that waits for this call: then it is of no use here.
        if not self._free.acquire(blocking=False):
            with contextlib.closing(asyncio.new_event_loop()) as another:
                return _run(another, awaitable)
        try:
            return _run(self._loop, awaitable)
        finally:
            self._free.release()


def _noting(how: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """The same way to call a function, which also notes what it raises."""

    async def noting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await how(function, *args, **kwargs)
        except BaseException as e:
            raised.append(e)
            raise

    return noting


def _run(loop: asyncio.AbstractEventLoop, awaitable: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(awaitable)
    return _elsewhere(lambda: loop.run_until_complete(awaitable))


def _elsewhere(step: Callable[[], Any]) -> Any:
    """Do something in a thread of its own, and wait for it: no loop runs there."""
    answer: list[Any] = []
    error: list[BaseException] = []

    def do() -> None:
        try:
            answer.append(step())
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(do,), name="onetray-testing")
    thread.start()
    thread.join()
    if error:
        raise error[0]
    return answer[0]
