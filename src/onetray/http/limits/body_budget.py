"""The bodies of all requests together: how many bytes of them there may be, and whose gives way when it is too much.

Owns the count. One body is read in requests.py. It runs on the loop, so nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from onetray.domain.errors import Busy

TOO_MUCH = (
    "the bodies of all requests take more than {:,} bytes: send this one again in a moment, or raise bodies_bytes"
)


class Bodies:
    """Room for so many bytes, from the first byte of each body to the end of its request."""

    def __init__(self, most: int) -> None:
        self.most, self._bytes = most, 0
        self._coming: dict[Body, None] = {}
        """Those that are not whole yet, the oldest first."""

    def hold(self, caller: str) -> Body:
        return Body(self, caller)

    def begin(self, body: Body) -> None:
        self._coming[body] = None

    def end(self, body: Body) -> None:
        self._coming.pop(body, None)

    def add(self, body: Body, size: int) -> None:
        """Count what has come of a body. Whoever sends most at once gives way, with the oldest that is not whole."""
        if body.gave_way:
            raise body.refusal
        body.size += size
        self._bytes += size
        while self._bytes > self.most:
            if (other := self._next_to_go()) is body:
                raise body.refusal
            other.give_way()
            self.release(other)

    def release(self, body: Body) -> None:
        self._bytes -= body.size
        body.size = 0
        self.end(body)

    def _next_to_go(self) -> Body:
        sent: Counter[str] = Counter()
        for body in self._coming:
            sent[body.caller] += body.size
        ((most, _),) = sent.most_common(1)
        return next(body for body in self._coming if body.caller == most)


class Body:
    """What is held of one body, by whom; for a `with` around its request."""

    def __init__(self, bodies: Bodies, caller: str) -> None:
        self._bodies, self.caller = bodies, caller
        self.size = 0
        self.gave_way = False
        self._limit: asyncio.Timeout | None = None

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._bodies.release(self)

    def begin(self, limit: asyncio.Timeout) -> None:
        """It is read from now on, within a time that can be cut short."""
        self._limit = limit
        self._bodies.begin(self)

    def add(self, size: int) -> None:
        self._bodies.add(self, size)

    def end(self) -> None:
        """It is whole."""
        self._bodies.end(self)

    def give_way(self) -> None:
        self.gave_way = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @property
    def refusal(self) -> Busy:
        return Busy(TOO_MUCH.format(self._bodies.most))
