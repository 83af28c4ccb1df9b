"""Find an app by its path: `package.module:name`.

Owns the errors of a path that does not lead to one: each says what to write.
"""

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
    """The app at a path. The working directory is looked in first, as by `python -m`."""
    from onetray.app.onetray import Onetray

    module_name, _, name = path.partition(":")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidInput(f"{path!r} is no path to an app: write module:app", field="app")
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
        found = getattr(module, name, None)
        if not isinstance(found, Onetray):
            raise InvalidInput(f"{module_name} has no Onetray named {name!r}: write module:app", field="app")
        return found
    apps = [value for value in vars(module).values() if isinstance(value, Onetray)]
    if len(apps) != 1:
        raise InvalidInput(f"{module_name} has {len(apps)} apps: write {module_name}:name", field="app")
    return apps[0]


class Lifespan:
    """A generator function, async or not, or none."""

    def __init__(self, function: Callable[[], Any] | None) -> None:
        self._function = function
        self._life: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    async def begin(self) -> Any:
        """Enter it; what it yields."""
        if self._function is None:
            return None
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(begun))
        done, _ = await asyncio.wait({begun, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if begun in done:
            return begun.result()
        # It has ended before it yielded: say why.
        self._life.result()
        raise RuntimeError("the lifespan has yielded nothing")

    async def _live(self, begun: asyncio.Future[Any]) -> None:
        assert self._function is not None
        async with contextlib.AsyncExitStack() as stack:
            if inspect.isasyncgenfunction(self._function):
                begun.set_result(await stack.enter_async_context(contextlib.asynccontextmanager(self._function)()))
            else:
                begun.set_result(stack.enter_context(contextlib.contextmanager(self._function)()))
            await self._ending.wait()

    async def end(self) -> None:
        """Leave it."""
        self._ending.set()
        if self._life is not None:
            await self._life
