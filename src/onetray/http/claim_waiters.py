"""Requests that wait for something to claim. They cost nothing while there is nothing.

Owns how many requests may wait at once, for whatever it is, how one is woken, and the one timer that has somebody look
without being told: one request of all that wait for the same work, and more of them only if it finds some. Who is woken
for which task is in notify/wake.py.
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
from onetray.notify.wake import Group, Waiter, Wake


class ClaimWait(Waiter):
    """The place of one request in the line."""

    def __init__(self, wake: Wake, queues: Iterable[Queue], group: Group, polls: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        super().__init__(wake, queues, group, self._call, polls)

    async def wait(self, seen: int, timeout_s: float, *ends: asyncio.Future[Any]) -> bool:
        """Wait until there may be more to claim than when `seen` was asked for, something else ends it, or the time
        is over. Answers whether there may be more."""
        self._woken = self._loop.create_future()
        if not self.enter(seen):
            return True
        try:
            await asyncio.wait((self._woken, *ends), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leave()
        return self.queue is not None

    def _call(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(_done, self._woken)
        except RuntimeError:  # Its loop is closed, and nobody waits there any more.
            self.pass_on()


class ClaimWaiters:
    """All requests of a server that wait for something to claim."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._places: dict[asyncio.AbstractEventLoop, set[ClaimWait]] = {}
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        self._polling: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    @property
    def closed(self) -> bool:
        """Whether it is of no use to wait."""
        return self._closed or self._wake.closed

    @contextmanager
    def place(self, queues: Iterable[Queue], group: Group, *, polls: bool = False) -> Iterator[ClaimWait]:
        """A place for a request. Those of one group can take the same tasks. One that `polls` looks by itself."""
        loop = asyncio.get_running_loop()
        place = ClaimWait(self._wake, queues, group, polls)
        self._places.setdefault(loop, set()).add(place)
        if loop not in self._timers:
            self._timers[loop] = loop.call_later(self._wake.poll_s, self._poll, loop)
        try:
            yield place
        finally:
            # Whatever it was woken for and has not looked for is the next one's.
            place.pass_on()
            self._places[loop].discard(place)
            if not self._places[loop]:
                del self._places[loop]
                self._timers.pop(loop).cancel()
                self._polling.pop(loop, None)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers[loop] = loop.call_later(self._wake.poll_s, self._poll, loop)
        # In a thread: it asks the database where there is work. That may hang, and one such question is enough.
        if not self.closed and (loop not in self._polling or self._polling[loop].done()):
            self._polling[loop] = loop.run_in_executor(None, self._wake.poll)

    def close(self) -> None:
        """Send everybody away who waits: the server stops."""
        self._closed = True
        for loop, places in list(self._places.items()):
            for place in list(places):
                loop.call_soon_threadsafe(partial(_done, place._woken))


class WaitSlots:
    """Places for requests that wait: so many on this server, open streams counted, and so many for each token."""

    def __init__(self, connections: int, streams: Callable[[], int]) -> None:
        self._streams = streams
        self._each: Counter[str] = Counter()
        self.leave_room(connections)

    def leave_room(self, connections: int) -> None:
        """Have at most three quarters of a server's connections, and half for one token: the rest are for others."""
        self._most, self._most_each = connections * 3 // 4, connections // 2

    @property
    def open(self) -> int:
        return self._each.total()

    @property
    def full(self) -> bool:
        return self.open + self._streams() >= self._most

    @contextmanager
    def place(self, who: Principal) -> Iterator[bool]:
        """A place for as long as the block lasts. False if there is none: answer at once."""
        caller = who.token or who.name
        if self.full or self._each[caller] >= self._most_each:
            yield False
            return
        self._each[caller] += 1
        try:
            yield True
        finally:
            self._each[caller] -= 1
            if not self._each[caller]:
                del self._each[caller]


@contextmanager
def gone(request: Request) -> Iterator[asyncio.Future[None]]:
    """Done when the client has left. For a request whose body was read."""
    watch = asyncio.create_task(_until_gone(request.receive))
    try:
        yield watch
    finally:
        watch.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
