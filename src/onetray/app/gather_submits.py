"""Batch single submits, and other calls of one event loop, into few calls of the engine.

A thread for each submit would cost more than the submit. So while one call runs, further submits wait, and the next
call sends them together in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from onetray.domain.commands import Command
    from onetray.domain.task import Verdict
    from onetray.engine.api import EngineApi

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Gathering(Generic[Item, Answer]):
    """The batches of one loop. Everything but `work`, which answers a whole batch, runs on the loop."""

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], limit: int) -> None:
        self._work, self._limit = work, limit
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._busy = False
        # Its own thread: one batch runs at a time. The thread ends with this object, which must not hold its loop: the
        # loop holds it.
        self._thread = ThreadPoolExecutor(1, "onetray-batch")

    async def call(self, item: Item) -> Answer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, answer))
        if not self._busy:
            self._busy = True
            # In the next iteration of the loop, so that the batch has all submits of this one.
            loop.call_soon(self._send, loop)
        return await answer

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
        self._thread.submit(self._run, loop, batch)

    def _run(self, loop: asyncio.AbstractEventLoop, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        """Run a batch, in the thread. Calls back by itself: a chain of futures would cost as much as a request."""
        error: BaseException | None = None
        answers: Sequence[Answer] = ()
        try:
            answers = self._work([item for item, _ in batch])
        except BaseException as e:
            error = e
        # The loop may be closed: then nobody waits for the answers.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._answer, loop, batch, answers, error)

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[tuple[Item, asyncio.Future[Answer]]],
        answers: Sequence[Answer],
        error: BaseException | None,
    ) -> None:
        for i, (_, answer) in enumerate(batch):
            if answer.done():
                continue  # The caller was cancelled; its command was carried out all the same.
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(answers[i])
        self._busy = bool(self._waiting)
        if self._busy:
            self._send(loop)


_BY_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[EngineApi, Gathering[Command, Verdict]]] = (
    WeakKeyDictionary()
)


def gathering_of(engine: EngineApi) -> Gathering[Command, Verdict]:
    """The engine's Gathering on the running loop."""
    by_engine = _BY_LOOP.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    gathering = by_engine.get(engine)
    if gathering is None:
        gathering = by_engine[engine] = Gathering(engine.run, engine.config.limits.batch)
    return gathering
