"""Load an app by its path (`package.module:name`), and run its lifespan."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from onetray.domain.errors import InvalidInput

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray


import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any


def load_app(path: str) -> Onetray:
    """Import the app at a path. Like `python -m`, this searches the working directory first."""
    from onetray.app.onetray import Onetray

    module_name, _, name = path.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidInput(f"{path!r} is not a path to an app: write module:app", field="app")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is not None and (module_name == e.name or module_name.startswith(f"{e.name}.")):
            raise InvalidInput(f"there is no module {module_name!r} here or on PYTHONPATH", field="app") from e
        raise
    if name:
        app = getattr(module, name, None)
        if not isinstance(app, Onetray):
            raise InvalidInput(f"{module_name} has no Onetray named {name!r}: write module:app", field="app")
        return app
    apps = [value for value in vars(module).values() if isinstance(value, Onetray)]
    if len(apps) != 1:
        raise InvalidInput(f"{module_name} has {len(apps)} apps: write {module_name}:name", field="app")
    return apps[0]


class Lifespan:
    """Runs the app's lifespan, a generator function (async or not), in its own asyncio task. None does nothing."""

    def __init__(self, function: Callable[[], Any] | None) -> None:
        self._function = function
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def begin(self) -> Any:
        """Enter the lifespan, and return what it yields."""
        if self._function is None:
            return None
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(entered))
        done, _ = await asyncio.wait({entered, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if entered in done:
            return entered.result()
        # It has ended before it yielded. If it raised, raise that here.
        self._task.result()
        raise RuntimeError("the lifespan did not yield")

    async def _run(self, entered: asyncio.Future[Any]) -> None:
        assert self._function is not None
        async with contextlib.AsyncExitStack() as stack:
            if inspect.isasyncgenfunction(self._function):
                entered.set_result(await stack.enter_async_context(contextlib.asynccontextmanager(self._function)()))
            else:
                entered.set_result(stack.enter_context(contextlib.contextmanager(self._function)()))
            await self._ending.wait()

    async def end(self) -> None:
        """Leave the lifespan."""
        self._ending.set()
        if self._task is not None:
            await self._task
