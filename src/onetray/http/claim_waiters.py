"""Requests that wait for claimable tasks, at no cost while there are none.

Owns how many requests may wait, how a request is woken, and the one timer that polls for all of them: it wakes one
request of those that wait for the same work, and more only if that one finds some. notify/wake.py decides which waiter
is woken for which task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from onetray.http.auth.scopes import Principal
from onetray.notify.new_work import Queue
from onetray.notify.waiters import Group, Waiter
from onetray.notify.wake import Wake


class ClaimWait(Waiter):
    """One waiting request."""

    def __init__(self, wake: Wake, queues: Iterable[Queue], group: Group, polls: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        super().__init__(wake, queues, group, self._on_wake, polls)

    async def wait(self, seen: int, timeout_s: float, *ends: asyncio.Future[Any]) -> bool:
        """Wait for tasks, at most until one of `ends` is done. Returns whether there may be any since `seen`."""
        self._woken = self._loop.create_future()
        if not self.enter(seen):
            return True
        try:
            await asyncio.wait((self._woken, *ends), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leave()
        return self.queue is not None

    def _on_wake(self) -> None:
        """Called from any thread."""
        try:
            self._loop.call_soon_threadsafe(_resolve, self._woken)
        except RuntimeError:  # Its loop is closed, so nothing waits there any more.
            self.leave_and_wake_next()


class ClaimWaiters:
    """All waiting claims of a server."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._waits: dict[asyncio.AbstractEventLoop, set[ClaimWait]] = {}
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        self._polling: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._waits.values()))

    @property
    def closed(self) -> bool:
        """Whether waiting is pointless."""
        return self._closed or self._wake.closed

    @contextmanager
    def waiter(self, queues: Iterable[Queue], group: Group, *, polls: bool = False) -> Iterator[ClaimWait]:
        """A waiter for one request. Those of one group can claim the same tasks. One that `polls` needs no timer."""
        loop = asyncio.get_running_loop()
        wait = ClaimWait(self._wake, queues, group, polls)
        self._waits.setdefault(loop, set()).add(wait)
        if loop not in self._timers:
            self._timers[loop] = loop.call_later(self._wake.poll_s, self._poll, loop)
        try:
            yield wait
        finally:
            # If it was woken but has not claimed, another waiter is woken in its place.
            wait.leave_and_wake_next()
            self._waits[loop].discard(wait)
            if not self._waits[loop]:
                del self._waits[loop]
                self._timers.pop(loop).cancel()
                self._polling.pop(loop, None)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers[loop] = loop.call_later(self._wake.poll_s, self._poll, loop)
        # In a thread: the poll queries the database, which may hang. One poll at a time is enough.
        if not self.closed and (loop not in self._polling or self._polling[loop].done()):
            self._polling[loop] = loop.run_in_executor(None, self._wake.poll)

    def close(self) -> None:
        """Wake all waiting requests: the server stops."""
        self._closed = True
        for loop, waits in list(self._waits.items()):
            for wait in list(waits):
                loop.call_soon_threadsafe(partial(_resolve, wait._woken))


class WaitSlots:
    """Limits waiting requests: per server, with open streams counted, and per token."""

    def __init__(self, connections: int, streams: Callable[[], int]) -> None:
        self._streams = streams
        self._open_by_caller: Counter[str] = Counter()
        self.cap_by_connections(connections)

    def cap_by_connections(self, connections: int) -> None:
        """Let at most three quarters of the server's connections wait, and at most half of them for one token."""
        self._max_total, self._max_each = connections * 3 // 4, connections // 2

    @property
    def open(self) -> int:
        return self._open_by_caller.total()

    @property
    def full(self) -> bool:
        return self.open + self._streams() >= self._max_total

    @contextmanager
    def slot(self, principal: Principal) -> Iterator[bool]:
        """Occupies a slot for the block. Yields False if there is none: respond at once."""
        caller = principal.token or principal.name
        if self.full or self._open_by_caller[caller] >= self._max_each:
            yield False
            return
        self._open_by_caller[caller] += 1
        try:
            yield True
        finally:
            self._open_by_caller[caller] -= 1
            if not self._open_by_caller[caller]:
                del self._open_by_caller[caller]


@contextmanager
def watch_disconnect(request: Request) -> Iterator[asyncio.Future[None]]:
    """A future that resolves when the client disconnects. The request's body must have been read."""
    watch = asyncio.create_task(_until_disconnected(request.receive))
    try:
        yield watch
    finally:
        watch.cancel()


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
