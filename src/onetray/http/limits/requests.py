"""What one request may be, and how much of it at once: bytes, depth, time, rate, open streams.

Owns the limits that stand before a route. What a payload or a batch may be is the engine's to say. The body is read
here, whole and checked, before a route is asked: so no route can forget it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetray.domain.errors import (
    BodyTooLarge,
    InvalidInput,
    NotJson,
    OnetrayError,
    SlowBody,
    TooDeep,
    TooManyRequests,
    TooManyStreams,
)
from onetray.http import problems
from onetray.http.auth.scopes import NOBODY, Principal, check_scope_early
from onetray.http.limits.body_budget import Bodies, Body

if TYPE_CHECKING:
    from onetray.http.services import HttpConfig, Services


import time
from collections import OrderedDict

P = ParamSpec("P")
T = TypeVar("T")
_READS = frozenset({"GET", "HEAD"})
_BODILESS = _READS | {"OPTIONS"}
_ABOUT_BODY = frozenset({b"content-length", b"content-type", b"content-encoding", b"transfer-encoding"})
_OPENED = bytes.maketrans(b"{}", b"[]")
SMALL = 65_536
"""Bytes of a body that are read before the token's scopes are looked at: a connection reads as many ahead."""
_NO_MARK = bytes(set(range(256)) - set(b'[]{}"'))


class LimitMiddleware:
    """Stands behind the gate: strangers are not read."""

    def __init__(self, app: ASGIApp, desk: Services) -> None:
        self._app, self._config = app, desk.config
        self._rates, self._bodies = Rates(desk.config.requests_per_s), Bodies(desk.config.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        who: Principal = scope["onetray.principal"]
        with self._bodies.hold(who.token or who.name) as held:
            try:
                self._must_have_room(who)
                # What anybody may ask needs no body: that of a stranger is not read.
                body = None if who is NOBODY else await read_body(scope, receive, self._config, held)
            except OnetrayError as error:
                # What was not read is still on its way: the connection is of no use to a next request.
                await problems.problem_answer(error, scope, {"connection": "close"})(scope, receive, send)
                return
            await self._app(scope, receive if body is None else again(body, receive), send)

    def _must_have_room(self, who: Principal) -> None:
        wait_s = self._rates.take(who.token or who.name)
        if wait_s:
            most = f"{self._config.requests_per_s:g}"
            raise TooManyRequests(f"more than {most} requests a second: come back later", retry_after_s=wait_s)


async def read_body(scope: Scope, receive: Receive, config: HttpConfig, held: Body) -> bytes | None:
    """The body, checked; None when there is none."""
    headers = {name: value for name, value in scope["headers"] if name in _ABOUT_BODY}
    said = headers.get(b"content-length", b"")
    chunked = b"transfer-encoding" in headers
    if scope["method"] in _BODILESS and said in (b"", b"0") and not chunked:
        return None
    if scope["method"] in _READS:
        raise InvalidInput(f"a {scope['method']} has no body: leave it out", field="body")
    length = int(said) if said.isdigit() and len(said) < 20 else 0
    if length > config.body_bytes:
        raise _too_large(config)
    if chunked or length > SMALL:
        await check_scope_early(scope)
    body = await _read(receive, config, held)
    if body:
        _must_be_json(headers)
        # Ten megabytes of brackets take a second.
        look = asyncio.to_thread if len(body) > SMALL else _at_once
        if await look(is_deeper, body, config.json_depth):
            raise TooDeep(f"the JSON is nested more than {config.json_depth} deep: make it flatter")
    return body


async def _at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


async def _read(receive: Receive, config: HttpConfig, held: Body) -> bytes:
    try:
        async with asyncio.timeout(config.body_s) as limit:
            held.begin(limit)
            return await _whole(receive, config, held)
    except TimeoutError:
        if held.gave_way:
            raise held.refusal from None
        raise SlowBody(f"the body did not come within {config.body_s:g} s: send it at once") from None
    finally:
        held.end()


async def _whole(receive: Receive, config: HttpConfig, held: Body) -> bytes:
    """What really comes, whatever Content-Length says."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise SlowBody("the caller left before the body was whole")
        part = message.get("body", b"")
        held.add(len(part))
        if held.size > config.body_bytes:
            raise _too_large(config)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(config: HttpConfig) -> BodyTooLarge:
    return BodyTooLarge(
        f"a body has at most {config.body_bytes:,} bytes: send it in parts, or raise body_bytes",
        limit=config.body_bytes,
    )


def _must_be_json(headers: dict[bytes, bytes]) -> None:
    kind, _, rest = headers.get(b"content-type", b"").lower().partition(b";")
    charset = rest.partition(b"charset=")[2].strip().strip(b'"')
    if kind.strip() != b"application/json" or charset not in (b"", b"utf-8"):
        raise NotJson("the body must be JSON: send `Content-Type: application/json`, in UTF-8")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise NotJson("the body must be JSON as it is: send it without Content-Encoding")


def is_deeper(body: bytes, most: int) -> bool:
    """Whether lists and objects in a text of JSON are nested more than so deep. Nothing is parsed, nothing recurses.

    Without what is escaped, every second stretch between quotes is outside of strings. Of the brackets there, the
    innermost pairs are taken away, as often as is allowed, or until too many are opened in a row. What is left is
    deeper, or was never closed.
    """
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_OPENED, _NO_MARK)
    left = b"".join(marks.split(b'"')[::2])
    deep = b"[" * (most + 1)
    for _ in range(most):
        if deep in left:
            return True
        inner = left.replace(b"[]", b"")
        if len(inner) == len(left):
            break
        left = inner
    return left.count(b"[") > (0 if b"[]" in left else most)


def again(body: bytes, receive: Receive) -> Receive:
    """The body for the route, as if it came now."""
    given = False

    async def received() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


class StreamSlots:
    """Places for open streams: so many on this server, so many for each token."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._each: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._each.total()

    def leave_room(self, connections: int) -> None:
        """Have at most three quarters of a server's connections: the rest are for other requests."""
        self._most = min(self._most, connections * 3 // 4)

    @asynccontextmanager
    async def place(self, who: Principal) -> AsyncIterator[None]:
        """A place for as long as the stream is open. TooManyStreams if there is none: enter before you answer."""
        caller = who.token or who.name
        if self.open >= self._most:
            raise TooManyStreams(f"{self._most} streams are open here: come back later", retry_after_s=5.0)
        if self._each[caller] >= self._most_each:
            raise TooManyStreams(f"{self._most_each} streams are open with this token: close one", retry_after_s=5.0)
        self._each[caller] += 1
        try:
            yield
        finally:
            self._each[caller] -= 1
            if not self._each[caller]:
                del self._each[caller]


MOST_CALLERS = 10_000


class Bucket:
    """Room for what comes in one second, at least for one."""

    __slots__ = ("_at", "_left", "_now", "_per_s")

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._left, self._at = max(per_s, 1.0), monotonic()

    def take(self) -> float:
        """Zero if there was room; otherwise how many seconds until there is."""
        now = self._now()
        self._left = min(max(self._per_s, 1.0), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._per_s
        self._left -= 1.0
        return 0.0


class Rates:
    """A bucket for each caller. The one that has not come for longest is forgotten: its bucket is full by then."""

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, caller: str) -> float:
        if not self._per_s:
            return 0.0
        bucket = self._buckets.pop(caller, None) or Bucket(self._per_s, self._now)
        self._buckets[caller] = bucket
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return bucket.take()
