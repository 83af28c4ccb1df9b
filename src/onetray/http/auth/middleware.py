"""The gate: nobody reaches a route without a principal.

Owns who a request comes from. It stands before the router, so that a path that does not exist is not told from one
that is not allowed. It stays beside a long answer: a stream ends when its token does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onetray.domain.errors import OnetrayError, Unauthorized
from onetray.http import problems
from onetray.http.auth.hosts import Sent, may_bind, must_be_allowed, must_be_local, sent_with
from onetray.http.auth.scopes import EXEMPT, NOBODY, Principal
from onetray.http.auth.token_cache import LOCAL, TokenCache
from onetray.http.auth.token_watch import TokenWatch
from onetray.http.services import Services

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
"""What browsers are told, unless a route says otherwise: guess nothing, keep nothing, lend nothing to other pages."""


UNDO = "onetray.undo"
"""In the scope of a request: called when its answer is withheld, by whoever must not leave it at that."""


class AuthMiddleware:
    def __init__(self, app: ASGIApp, desk: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._app, self._desk, self._now = app, desk, monotonic
        self._known = TokenCache(desk, monotonic)
        # What is known may be one cache time old already: a look in between keeps the sum below 5 seconds.
        self._every_s = max(desk.config.token_cache_s / 2, 0.1)
        desk.tokens = TokenWatch(self._known, self._every_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._let_in(scope, receive, send)
        else:
            # There is no other way in.
            await send({"type": "websocket.close", "code": 1008})

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            who = NOBODY if (scope["method"], scope["path"]) in EXEMPT else await self._who(scope)
        except Exception as error:
            await problems.problem_answer(error, scope)(scope, receive, with_headers(send))
            return
        scope["onetray.principal"] = who
        watched = WatchedSend(with_headers(send), scope, receive, who, self._known, self._every_s, self._now)
        await self._app(scope, receive, watched)

    async def _who(self, scope: Scope) -> Principal:
        headers, config = sent_with(scope), self._desk.config
        if not await self._known.needed():
            must_be_local(scope, headers)
            return LOCAL
        must_be_allowed(headers, config.allowed_hosts, config.allowed_origins)
        return await self._known.principal(_bearer(headers))


class WatchedSend:
    """The way out of a request: what is said long after it was let in is said only if it still would be."""

    def __init__(
        self, send: Send, scope: Scope, receive: Receive, who: Principal, known: TokenCache, every_s: float,
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._send, self._scope, self._receive, self._who = send, scope, receive, who
        self._known, self._every_s, self._now = known, every_s, monotonic
        self._seen, self._over = monotonic(), False

    async def __call__(self, message: Message) -> None:
        if self._over:
            return
        if self._who is NOBODY or self._now() - self._seen < self._every_s:
            await self._send(message)
            return
        self._seen = self._now()
        try:
            await self._known.must_still_be(self._who)
        except Unauthorized as error:
            self._over = True
            await self._end(message, error)
        except OnetrayError:
            # The database is away, and nothing new comes from it either: asked again with the next message.
            await self._send(message)
        else:
            await self._send(message)

    async def _end(self, message: Message, error: Unauthorized) -> None:
        if message["type"] == "http.response.start":
            if (undo := self._scope.get(UNDO)) is not None:
                await undo()
            await problems.problem_answer(error, self._scope)(self._scope, self._receive, self._send)
        else:
            # The server closes the request with this, and the route is told that its reader has left.
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(h for h in HEADERS if h[0] not in given)]}
        await send(message)

    return sent


def _bearer(headers: Sent) -> str | None:
    """What was sent as a token; None when nothing was."""
    sent = headers[b"authorization"]
    if not sent:
        return None
    scheme, _, text = sent[0].partition(" ")
    return text.strip() if len(sent) == 1 and scheme.lower() == "bearer" else ""


__all__ = ["LOCAL", "NOBODY", "UNDO", "AuthMiddleware", "may_bind"]
