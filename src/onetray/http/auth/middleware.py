"""Authentication: every request that reaches a route has a principal.

Owns who a request comes from. It runs before the router, so that a caller without access cannot learn which paths
exist. It also ends a long response, such as a stream, when its token ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetray.domain.errors import OnetrayError, Unauthorized
from onetray.http import problems
from onetray.http.auth.hosts import AuthHeaders, auth_headers, check_allowed, check_local, may_bind
from onetray.http.auth.scopes import EXEMPT, NOBODY, Principal
from onetray.http.auth.token_cache import LOCAL, TokenCache
from onetray.http.auth.token_watch import TokenWatch
from onetray.http.json_answers import BODILESS, Json
from onetray.http.observe.request_log import ENTRY, RequestEntry
from onetray.http.services import Services

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
"""Defaults for browsers, unless a route sets its own: no sniffing, no caching, no use by other pages."""
DEFAULT_NAMES = frozenset(name for name, _ in HEADERS)
DEFAULT_LINES = b"".join(b"%s: %s\r\n" % header for header in HEADERS)

PLAIN_RESPONSES = frozenset({Response, Json})
"""Responses that are complete, and send nothing but themselves."""
UNDO = "onetray.undo"
"""Key in a request's scope: a callback that undoes the request's effect when its response is withheld."""


class AuthMiddleware:
    def __init__(self, app: ASGIApp, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._app, self._services, self._now = app, services, monotonic
        self._tokens = TokenCache(services, monotonic)
        # A cached token may be one cache period old: rechecking at half of it keeps the sum below 5 seconds.
        self._recheck_s = max(services.config.token_cache_s / 2, 0.1)
        services.tokens = TokenWatch(self._tokens, self._recheck_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._authenticate(scope, receive, send)
        else:
            # WebSockets are not supported.
            await send({"type": "websocket.close", "code": 1008})

    async def _authenticate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = await self._principal(scope)
        except Exception as error:
            await problems.problem_answer(error, scope)(scope, receive, with_headers(send))
            return
        scope["onetray.principal"] = principal
        await self._app(scope, receive, self.watched(scope, receive, send, principal))

    def watched(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> WatchedSend:
        return WatchedSend(send, scope, receive, principal, self._tokens, self._recheck_s, self._now)

    def principal_at_once(self, scope: Scope) -> Principal | None:
        """The caller of a request to a path that takes tokens only, if that takes no query. None: do it as usual."""
        headers, config = auth_headers(scope), self._services.config
        try:
            if self._tokens.known_not_needed:
                check_local(scope, headers)
                return LOCAL
            check_allowed(headers, config.allowed_hosts, config.allowed_origins)
        except OnetrayError:
            return None
        return self._tokens.principal_at_once(bearer_of(headers))

    async def _principal(self, scope: Scope) -> Principal:
        browser = self._services.browser
        if browser is not None and browser.owns(scope["path"]):
            return await browser.principal(scope, self._tokens)
        if (scope["method"], scope["path"]) in EXEMPT:
            return NOBODY
        headers, config = auth_headers(scope), self._services.config
        if self._tokens.known_not_needed or not await self._tokens.needed():
            check_local(scope, headers)
            return LOCAL
        check_allowed(headers, config.allowed_hosts, config.allowed_origins)
        return await self._tokens.principal(bearer_of(headers))


class WatchedSend:
    """Checks the token again before it sends a message long after the request was authenticated."""

    def __init__(
        self, send: Send, scope: Scope, receive: Receive, principal: Principal, tokens: TokenCache, recheck_s: float,
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._send_bare, self._scope, self._receive, self._principal = send, scope, receive, principal
        self._tokens, self._recheck_s, self._now = tokens, recheck_s, monotonic
        self._checked_at, self._is_closed = monotonic(), False

    @property
    def _send(self) -> Send:
        return with_headers(self._send_bare)

    async def __call__(self, message: Message) -> None:
        if self._is_closed:
            return
        if not self._is_due:
            await self._send(message)
            return
        self._checked_at = self._now()
        if self._principal is LOCAL and message["type"] == "http.response.start":
            # The first token may have been made meanwhile, perhaps by this request, whose answer shows it.
            await self._send(message)
            return
        try:
            await self._tokens.recheck(self._principal)
        except Unauthorized as error:
            self._is_closed = True
            await self._end(message, error)
        except OnetrayError:
            # The database is unavailable, so this message holds nothing new: check again with the next one.
            await self._send(message)
        else:
            await self._send(message)

    def send_at_once(self, response: Response) -> bool:
        """Send a whole response without an await. Returns False if that takes a check of the token, or more."""
        entry: RequestEntry | None = self._scope.get(ENTRY)
        if entry is None or self._is_closed or self._is_due or type(response) not in PLAIN_RESPONSES:
            return False
        if response.status_code in BODILESS or response.background is not None or self._scope["method"] == "HEAD":
            return False
        headers, body = response.raw_headers, bytes(response.body)
        if DEFAULT_NAMES.isdisjoint([name for name, _ in headers]):
            return entry.send_at_once(response.status_code, headers, body, DEFAULT_LINES)
        return entry.send_at_once(response.status_code, with_default_headers(headers), body, b"")

    @property
    def _is_due(self) -> bool:
        """Whether the token has to be checked again before the next message."""
        return self._principal is not NOBODY and self._now() - self._checked_at >= self._recheck_s

    async def _end(self, message: Message, error: Unauthorized) -> None:
        if message["type"] == "http.response.start":
            if (undo := self._scope.get(UNDO)) is not None:
                await undo()
            await problems.problem_answer(error, self._scope)(self._scope, self._receive, self._send)
        else:
            # The server ends the response with this, and the route sees a disconnect.
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": with_default_headers(message["headers"])}
        await send(message)

    return send_with_headers


def with_default_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name for name, _ in headers}
    return [*headers, *(default for default in HEADERS if default[0] not in names)]


def bearer_of(headers: AuthHeaders) -> str | None:
    """The bearer token; None without an Authorization header, empty if the header is invalid."""
    values = headers[b"authorization"]
    if not values:
        return None
    scheme, _, text = values[0].partition(" ")
    return text.strip() if len(values) == 1 and scheme.lower() == "bearer" else ""


__all__ = ["LOCAL", "NOBODY", "UNDO", "AuthMiddleware", "may_bind"]
