"""Limits on one request: size, JSON depth, time, rate, open streams.

Owns the limits that apply before any route runs. The engine limits payloads and batches. The middleware reads and
checks the whole body, so no route can forget to.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
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
from onetray.http.limits.body_budget import Body, BodyBudget
from onetray.http.request import BODY, TAKES_FORMS, connection_of, header_values, last_value

if TYPE_CHECKING:
    from onetray.http.services import HttpConfig, Services

P = ParamSpec("P")
T = TypeVar("T")
_READ_METHODS = frozenset({"GET", "HEAD"})
_BODILESS_METHODS = _READ_METHODS | {"OPTIONS"}
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
SMALL_BODY_BYTES = 65_536
"""Bodies up to this size are read before the token's scopes are checked: a connection buffers as much anyway."""
_NOT_STRUCTURAL = bytes(set(range(256)) - set(b'[]{}"'))


class LimitMiddleware:
    """Runs after authentication: unauthenticated bodies are never read."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app, self._config = app, services.config
        self._rates = RateLimiter(services.config.requests_per_s)
        self._body_budget = BodyBudget(services.config.bodies_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        principal: Principal = scope["onetray.principal"]
        with self._body_budget.open(principal.token or principal.name) as upload:
            try:
                self._check_rate(principal)
                # Public routes take no body: an unauthenticated one is not read.
                body = None if principal is NOBODY else await read_body(scope, receive, self._config, upload)
            except OnetrayError as error:
                # The rest of the body is still in transit, so the connection cannot serve another request.
                await problems.problem_answer(error, scope, {"connection": "close"})(scope, receive, send)
                return
            if body is not None:
                scope[BODY], receive = body, replay(body, receive)
            await self._app(scope, receive, send)

    def is_plain(self, scope: Scope, body: bytes) -> bool:
        """Whether a body that has arrived is small JSON which `read_body` would take."""
        headers = header_values(scope)
        return (
            len(body) <= min(SMALL_BODY_BYTES, self._config.body_bytes)
            and headers.get(b"content-type") == [b"application/json"]
            and b"transfer-encoding" not in headers
            and b"content-encoding" not in headers
            and not is_deeper(body, self._config.json_depth)
        )

    def admit(self, principal: Principal, body: bytes) -> Body | None:
        """Count a request and its body, until it is released. None if the caller sends too many. Raises Busy."""
        caller = principal.token or principal.name
        if self._rates.take(caller):
            return None
        upload = self._body_budget.open(caller)
        try:
            _count_at_once(body, self._config, upload)
        except OnetrayError:
            upload.release()
            raise
        return upload

    def _check_rate(self, principal: Principal) -> None:
        retry_after_s = self._rates.take(principal.token or principal.name)
        if retry_after_s:
            limit = f"{self._config.requests_per_s:g}"
            raise TooManyRequests(f"more than {limit} requests a second: slow down", retry_after_s=retry_after_s)


async def read_body(scope: Scope, receive: Receive, config: HttpConfig, upload: Body) -> bytes | None:
    """Read and check the body. Returns None if there is none."""
    content_length = last_value(scope, b"content-length")
    chunked = b"transfer-encoding" in header_values(scope)
    if not chunked and (content_length == b"0" or (not content_length and scope["method"] in _BODILESS_METHODS)):
        return None
    if scope["method"] in _READ_METHODS:
        raise InvalidInput(f"a {scope['method']} request cannot have a body: leave it out", field="body")
    length = int(content_length) if content_length.isdigit() and len(content_length) < 20 else 0
    if length > config.body_bytes:
        raise _too_large(config)
    if chunked or length > SMALL_BODY_BYTES:
        await check_scope_early(scope)
    connection = connection_of(scope)
    body = None if connection is None else connection.take_body()
    if body is None:
        body = await _receive_in_time(receive, config, upload)
    else:
        _count_at_once(body, config, upload)
    if body and not scope.get(TAKES_FORMS):
        _check_headers(scope)
        # The check takes about a second for ten megabytes of brackets: too long for the event loop.
        run = asyncio.to_thread if len(body) > SMALL_BODY_BYTES else _at_once
        if await run(is_deeper, body, config.json_depth):
            raise TooDeep(f"the JSON is nested deeper than {config.json_depth} levels: flatten it")
    return body


async def _at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)


def _count_at_once(body: bytes, config: HttpConfig, upload: Body) -> None:
    """Count a body that came together with the head, as most do: a timeout would cost more than the body."""
    upload.begin(None)
    try:
        upload.add(len(body))
        if len(body) > config.body_bytes:
            raise _too_large(config)
    finally:
        upload.end()


async def _receive_in_time(receive: Receive, config: HttpConfig, upload: Body) -> bytes:
    try:
        async with asyncio.timeout(config.body_s) as timeout:
            upload.begin(timeout)
            return await _receive_all(receive, config, upload)
    except TimeoutError:
        if upload.is_evicted:
            raise upload.over_budget from None
        raise SlowBody(f"the body did not arrive within {config.body_s:g} s: send it without pauses") from None
    finally:
        upload.end()


async def _receive_all(receive: Receive, config: HttpConfig, upload: Body) -> bytes:
    """Count the bytes received: Content-Length is not trusted."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise SlowBody("the client disconnected before the body was complete")
        part = message.get("body", b"")
        upload.add(len(part))
        if upload.size > config.body_bytes:
            raise _too_large(config)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _too_large(config: HttpConfig) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {config.body_bytes:,} bytes: send it in parts, or raise body_bytes",
        limit=config.body_bytes,
    )


def _check_headers(scope: Scope) -> None:
    if not _is_json(last_value(scope, b"content-type")):
        raise NotJson("the body must be JSON: send `Content-Type: application/json`, in UTF-8")
    if header_values(scope).get(b"content-encoding", [b"identity"])[-1].lower() != b"identity":
        raise NotJson("the body must not be compressed: send it without Content-Encoding")


def _is_json(content_type: bytes) -> bool:
    if content_type == b"application/json":
        return True
    media_type, _, parameters = content_type.lower().partition(b";")
    charset = parameters.partition(b"charset=")[2].strip().strip(b'"')
    return media_type.strip() == b"application/json" and charset in (b"", b"utf-8")


def is_deeper(body: bytes, max_depth: int) -> bool:
    """Whether JSON text is nested deeper than `max_depth`, without parsing or recursion.

    With escape sequences removed, every second stretch between quotes is outside of strings. The loop removes the
    innermost pairs of brackets, one level per pass, and stops early at too many opening brackets in a row. Brackets
    that remain are nested too deep, or are never closed.
    """
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_BRACES_TO_BRACKETS, _NOT_STRUCTURAL)
    brackets = b"".join(marks.split(b'"')[::2])
    too_deep = b"[" * (max_depth + 1)
    for _ in range(max_depth):
        if too_deep in brackets:
            return True
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    return brackets.count(b"[") > (0 if b"[]" in brackets else max_depth)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was already read."""
    is_replayed = False

    async def receive_again() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


class StreamSlots:
    """Limits open streams: per server and per token."""

    def __init__(self, max_total: int, max_each: int) -> None:
        self._max_total, self._max_each = max_total, max_each
        self._open_by_caller: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open_by_caller.total()

    def cap_by_connections(self, connections: int) -> None:
        """Use at most three quarters of the server's connections for streams."""
        self._max_total = min(self._max_total, connections * 3 // 4)

    @asynccontextmanager
    async def slot(self, principal: Principal) -> AsyncIterator[None]:
        """Occupies a slot while the stream is open. Raises TooManyStreams: enter before the response starts."""
        caller = principal.token or principal.name
        if self.open >= self._max_total:
            raise TooManyStreams(f"{self._max_total} streams are open here: try again later", retry_after_s=5.0)
        if self._open_by_caller[caller] >= self._max_each:
            raise TooManyStreams(f"{self._max_each} streams are open with this token: close one", retry_after_s=5.0)
        self._open_by_caller[caller] += 1
        try:
            yield
        finally:
            self._open_by_caller[caller] -= 1
            if not self._open_by_caller[caller]:
                del self._open_by_caller[caller]


MAX_CALLERS = 10_000
"""Token buckets that are kept."""


class TokenBucket:
    """A token bucket that holds one second's worth of requests, at least one."""

    __slots__ = ("_at", "_left", "_now", "_per_s")

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._left, self._at = max(per_s, 1.0), monotonic()

    def take(self) -> float:
        """Returns 0 if the request may pass, otherwise the seconds until one may."""
        now = self._now()
        self._left = min(max(self._per_s, 1.0), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._per_s
        self._left -= 1.0
        return 0.0


class RateLimiter:
    """A token bucket per caller. Evicts the least recently used one, which has refilled by then."""

    def __init__(self, per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._now = per_s, monotonic
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, caller: str) -> float:
        if not self._per_s:
            return 0.0
        bucket = self._buckets.pop(caller, None) or TokenBucket(self._per_s, self._now)
        self._buckets[caller] = bucket
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return bucket.take()
