"""The gate: nobody reaches a route without a principal.

Owns who a request comes from. It stands before the router, so that a path that does not exist is not told from one
that is not allowed.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from onetray.http.access import SCOPES, Principal

LOCAL = Principal("local", "default", frozenset(SCOPES))
"""Whoever reaches a server that has no tokens: it listens on the loopback interface alone."""


class Gate:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["onetray.principal"] = LOCAL
        await self._app(scope, receive, send)
