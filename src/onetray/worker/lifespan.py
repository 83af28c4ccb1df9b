"""An app's lifespan: entered before the first task, left after the last, in one task of one loop.

Owns that it is one task: what a lifespan opens may have to be closed by whoever opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any


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
