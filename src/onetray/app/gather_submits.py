"""Batch single submits, and other calls of one event loop, into few calls of the engine.

A thread for each submit would cost more than the submit. So while one call runs, further submits wait, and the next
call sends them together in one transaction. After a large batch the next one waits until its callers are back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from onetray.domain.commands import Command
    from onetray.domain.task import Verdict
    from onetray.engine.api import EngineApi

GATHER_FROM = 8
"""After a batch of so many callers, the next one waits for them. Otherwise the first who is back would be a batch
alone, and all others would wait for it."""
GATHER_STEP_S, GATHER_S = 0.001, 0.01
"""It waits for no longer than this without another caller, and in all."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Answer_contra = TypeVar("Answer_contra", contravariant=True)


class Answers(Protocol[Answer_contra]):
    """What gets the answers of one caller, on the loop: a future, or something like it, whose methods do not raise."""

    def done(self) -> bool: ...

    def set_result(self, answers: Sequence[Answer_contra], /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Waiting(Generic[Item, Answer]):
    """The items of one caller, and what gets their answers."""

    __slots__ = ("answers", "items")

    def __init__(self, items: Sequence[Item], answers: Answers[Answer]) -> None:
        self.items, self.answers = items, answers


class Gathering(Generic[Item, Answer]):
    """The batches of one loop. Everything but `work`, which answers a whole batch, runs on the loop."""

    def __init__(self, work: Callable[[list[Item]], Sequence[Answer]], limit: int) -> None:
        self._work, self._limit = work, limit
        self._waiting: list[Waiting[Item, Answer]] = []
        self._busy = False
        self._expected, self._until = 0, 0.0
        """How many callers the last batch had, and until when the next one waits for them, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        # Its own thread: one batch runs at a time. The thread ends with this object, which must not hold its loop: the
        # loop holds it.
        self._thread = ThreadPoolExecutor(1, "onetray-batch")

    async def call(self, item: Item) -> Answer:
        return (await self.put((item,)))[0]

    def put(self, items: Sequence[Item]) -> asyncio.Future[Sequence[Answer]]:
        """Add items that are carried out in one batch. Await what it returns for their answers."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self.put_for(answers, items)
        return answers

    def put_for(self, answers: Answers[Answer], items: Sequence[Item]) -> None:
        """Add items that are carried out in one batch, and what gets their answers."""
        self._waiting.append(Waiting(items, answers))
        if self._timer is not None:
            self._timer.cancel()
        elif self._busy:
            return
        self._busy = True
        self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the next batch soon, or when the callers of the last one are back."""
        self._timer = None
        if len(self._waiting) < self._expected and (now := loop.time()) < self._until:
            self._timer = loop.call_at(min(now + GATHER_STEP_S, self._until), self._send, loop)
        else:
            # In the next iteration of the loop, so that the batch has all submits of this one.
            loop.call_soon(self._send, loop)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._expected = None, 0
        count = self._next_count()
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._thread.submit(self._run, loop, batch)

    def _next_count(self) -> int:
        """How many callers the next batch serves: at least one."""
        size = 0
        for count, unit in enumerate(self._waiting):
            size += len(unit.items)
            if size > self._limit:
                return max(count, 1)
        return len(self._waiting)

    def _run(self, loop: asyncio.AbstractEventLoop, batch: list[Waiting[Item, Answer]]) -> None:
        """Run a batch, in the thread. Calls back by itself: a chain of futures would cost as much as a request."""
        error: BaseException | None = None
        answers: Sequence[Answer] = ()
        try:
            answers = self._work([item for unit in batch for item in unit.items])
        except BaseException as e:
            error = e
        # The loop may be closed: then nobody waits for the answers.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._answer, loop, batch, answers, error)

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[Waiting[Item, Answer]],
        answers: Sequence[Answer],
        error: BaseException | None,
    ) -> None:
        start = 0
        for unit in batch:
            end = start + len(unit.items)
            if unit.answers.done():
                pass  # The caller was cancelled; its commands were carried out all the same.
            elif error is not None:
                unit.answers.set_exception(error)
            else:
                unit.answers.set_result(answers[start:end])
            start = end
        if len(batch) >= GATHER_FROM:
            self._expected, self._until = len(batch), loop.time() + GATHER_S
        self._busy = bool(self._waiting)
        if self._busy:
            self._schedule(loop)


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
