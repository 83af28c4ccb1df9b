"""Single submits of one event loop, gathered into few calls of the engine.

Owns what waits while the call before is under way. A thread for each submit would cost more than the submit: so there
is one hop for all that came meanwhile, and they share a transaction.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from onetray.domain.commands import Command
    from onetray.domain.task import Verdict
    from onetray.engine.api import EngineApi

    Waiting = tuple[Command, asyncio.Future[Verdict]]


class Gathering:
    """For one loop and one engine. All of it runs on the loop, but the call itself."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self._waiting: list[Waiting] = []
        self._busy = False

    async def call(self, command: Command) -> Verdict:
        answer: asyncio.Future[Verdict] = self._loop.create_future()
        self._waiting.append((command, answer))
        if not self._busy:
            self._busy = True
            # After this turn of the loop: whoever submits in it comes along.
            self._loop.call_soon(self._go)
        return await answer

    def _go(self) -> None:
        most = self._engine.config.limits.batch
        batch, self._waiting = self._waiting[:most], self._waiting[most:]
        work = self._loop.run_in_executor(None, self._engine.run, [command for command, _ in batch])
        work.add_done_callback(partial(self._answer, batch))

    def _answer(self, batch: list[Waiting], work: asyncio.Future[list[Verdict]]) -> None:
        error = asyncio.CancelledError() if work.cancelled() else work.exception()
        for i, (_, answer) in enumerate(batch):
            if answer.done():
                continue  # Nobody waits for it any more. It was submitted all the same.
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(work.result()[i])
        self._busy = bool(self._waiting)
        if self._busy:
            self._go()


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[EngineApi, Gathering]] = WeakKeyDictionary()


def gathering_of(engine: EngineApi) -> Gathering:
    """The one of the loop that runs here."""
    of_loop = _OF_LOOPS.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    found = of_loop.get(engine)
    if found is None:
        found = of_loop[engine] = Gathering(engine)
    return found
