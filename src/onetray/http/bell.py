"""Wakes the requests that wait for something to claim, with one thread for all of them.

Owns that thread, which lives while somebody waits. It carries no data and may be late: whoever waits gives a time and
looks for himself.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from onetray.wake import Wake

logger = logging.getLogger("onetray.http")

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Bell:
    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: set[Waiter] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it is of no use to wait on."""
        return self._closed or self._wake.closed

    @property
    def work(self) -> int:
        """To be asked before looking, and given to `wait`: what comes in between is not missed."""
        return self._wake.work

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Until there may be more to claim than when `work` was `seen`, or the time is over."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = (loop, loop.create_future())
        with self._lock:
            self._waiting.add(waiter)
            if self._thread is None:
                self._begin(seen)
        try:
            # Looked at again once the thread knows of this one.
            if self._wake.work == seen and not self.closed:
                await asyncio.wait([waiter[1]], timeout=min(timeout_s, self._wake.poll_s))
        finally:
            with self._lock:
                self._waiting.discard(waiter)

    def _begin(self, seen: int) -> None:
        thread = threading.Thread(target=self._listen, args=(seen,), name="onetray-bell", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            # Whoever waits looks again after a moment all the same.
            logger.warning("nobody can be woken, those who wait have to poll: %s", e)
        else:
            self._thread = thread

    def close(self) -> None:
        """Send everybody away who waits: the server stops."""
        self._closed = True
        self._ring()

    def _listen(self, seen: int) -> None:
        while self._is_needed():
            self._wake.wait_for_work(seen, self._wake.poll_s)
            came, seen = seen, self._wake.work
            if seen != came or self._wake.closed:
                self._ring()

    def _is_needed(self) -> bool:
        """Whether somebody waits. If not, the thread is given up under the same lock: the next one starts another."""
        with self._lock:
            if self._waiting and not self._wake.closed:
                return True
            self._thread = None
            return False

    def _ring(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_done, future)
            except RuntimeError:  # Its loop is closed: nobody is there any more.
                logger.debug("a loop was closed while somebody waited on it")


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
