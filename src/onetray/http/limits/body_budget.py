"""A byte budget shared by the bodies of all open requests, and which upload is rejected when it is exceeded.

Owns the count. requests.py reads the bodies. Everything runs on the event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from onetray.domain.errors import Busy

OVER_BUDGET = "the bodies of all requests take more than {:,} bytes: send this one again later, or raise bodies_bytes"


class BodyBudget:
    """Counts each body from its first byte to the end of its request."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._bytes = max_bytes, 0
        self._incomplete: dict[Body, None] = {}
        """Bodies that are still being received, oldest first."""

    def open(self, caller: str) -> Body:
        return Body(self, caller)

    def begin(self, body: Body) -> None:
        self._incomplete[body] = None

    def end(self, body: Body) -> None:
        self._incomplete.pop(body, None)

    def add(self, body: Body, size: int) -> None:
        """Count received bytes. Over budget, reject the oldest upload of the caller with the most bytes in transit."""
        if body.is_evicted:
            raise body.over_budget
        body.size += size
        self._bytes += size
        while self._bytes > self.max_bytes:
            if (victim := self._next_victim()) is body:
                raise body.over_budget
            victim.evict()
            self.release(victim)

    def release(self, body: Body) -> None:
        self._bytes -= body.size
        body.size = 0
        self.end(body)

    def _next_victim(self) -> Body:
        bytes_by_caller: Counter[str] = Counter()
        for body in self._incomplete:
            bytes_by_caller[body.caller] += body.size
        ((largest, _),) = bytes_by_caller.most_common(1)
        return next(body for body in self._incomplete if body.caller == largest)


class Body:
    """One request's share of the budget; use it in a `with` around the request."""

    __slots__ = ("_budget", "_timeout", "caller", "is_evicted", "size")

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget, self.caller = budget, caller
        self.size = 0
        self.is_evicted = False
        self._timeout: asyncio.Timeout | None = None

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._budget.release(self)

    def begin(self, timeout: asyncio.Timeout | None) -> None:
        """Start receiving. Eviction expires the timeout at once. None: all of it has arrived."""
        self._timeout = timeout
        self._budget.begin(self)

    def add(self, size: int) -> None:
        self._budget.add(self, size)

    def end(self) -> None:
        """The body is complete, so it is no longer evicted."""
        self._budget.end(self)

    def evict(self) -> None:
        self.is_evicted = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    @property
    def over_budget(self) -> Busy:
        return Busy(OVER_BUDGET.format(self._budget.max_bytes))
