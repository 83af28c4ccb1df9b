"""Questions that machines ask every few seconds, and that a database that hangs does not answer.

Owns that they take no thread which requests need: each kind is asked once at a time, in a thread of its own, and its
answer is for all who ask meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from onetray.errors import Unavailable

T = TypeVar("T")


class Probe(Generic[T]):
    """One such question. It runs on the loop, but for the asking itself."""

    def __init__(self, ask: Callable[[], T], *, limit_s: float, kept_s: float = 0.0) -> None:
        self._ask, self._limit_s, self._kept_s = ask, limit_s, kept_s
        self._asked: asyncio.Task[T] | None = None
        self._began = 0.0

    async def answer(self) -> T:
        """The answer, at most `kept_s` old. Unavailable if it does not come within `limit_s` of the asking."""
        now = asyncio.get_running_loop().time()
        if self._asked is None or (self._asked.done() and now >= self._began + self._kept_s):
            self._began = now
            self._asked = asyncio.create_task(_in_thread(self._ask))
        try:
            async with asyncio.timeout_at(self._began + self._limit_s):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            raise Unavailable(f"the database does not answer within {self._limit_s:g} s: try again") from None


async def _in_thread(function: Callable[[], T]) -> T:
    """Call it in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            result = function()
        except Exception as error:
            tell = partial(done.set_exception, error)
        else:
            tell = partial(done.set_result, result)
        # The loop may be closed: nobody waits then.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=call, name="onetray-probe", daemon=True).start()
    return await done
