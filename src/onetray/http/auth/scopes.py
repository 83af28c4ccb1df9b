"""Authorization: every route declares the scope that it needs.

Owns the rule that the server does not start with a route without one. middleware.py authenticates.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from onetray.domain.errors import Forbidden
from onetray.domain.token import ADMIN, OPERATE, READ, SUBMIT, WORK

_OPEN_PATHS = ("/", "/healthz", "/readyz", "/api/v1/version", "/ui/login", "/ui/static/{name}")
EXEMPT = frozenset({*((method, path) for method in ("GET", "HEAD") for path in _OPEN_PATHS), ("POST", "/ui/login")})
"""Requests that need no token: exact paths, nothing below them. At `/` a browser without a session has to log in."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller: its name in events, its namespace and its scopes."""

    name: str
    namespace: str
    scopes: frozenset[str]
    token: str | None = None
    """The public id of the token; None if the server has no tokens."""
    groups: tuple[str, ...] = ()
    """Whose approvals it may answer, besides its own."""

    def has(self, *scopes: str) -> bool:
        """Whether the caller has one of these scopes. Admins have all."""
        return not self.scopes.isdisjoint((*scopes, ADMIN))


NOBODY = Principal("anonymous", "default", frozenset())
"""The caller of a request that needs no token."""


def principal_of(request: Request) -> Principal:
    """The principal that the authentication middleware has set."""
    principal: Principal = request.scope["onetray.principal"]
    return principal


def allow(*scopes: str) -> Callable[[Request], Coroutine[Any, Any, Principal]]:
    """A dependency of routes that returns the principal, or raises Forbidden if it has none of these scopes."""

    enough = frozenset((*scopes, ADMIN))

    # Async, or FastAPI would call it in a thread.
    async def allowed(request: Request) -> Principal:
        principal = principal_of(request)
        if enough.isdisjoint(principal.scopes):
            has = ", ".join(sorted(principal.scopes)) or "none"
            raise Forbidden(
                f"this needs the scope {' or '.join(scopes)}, but the token {principal.name!r} has {has}: "
                f"create one with `onetray token create --scope {scopes[0]}`",
                needs=list(scopes),
            )
        return principal

    allowed.scopes, allowed.enough = scopes, enough  # type: ignore[attr-defined]
    return allowed


Reader = Depends(allow(READ))
Submitter = Depends(allow(SUBMIT))
Worker = Depends(allow(WORK))
Operator = Depends(allow(OPERATE))


async def check_scope_early(scope: Scope) -> None:
    """Raises Forbidden, before the body is read, if the token lacks the scope that the route needs."""
    for route in scope["app"].state.guarded:
        if route.matches(scope)[0] is Match.FULL:
            for dependency in route.dependant.dependencies:
                if hasattr(dependency.call, "scopes"):
                    await dependency.call(Request(scope))
            return


def must_be_guarded(routes: Iterable[BaseRoute]) -> None:
    """Raises RuntimeError for a route that declares no scope and is not exempt."""
    for route in routes:
        if not isinstance(route, APIRoute):
            raise RuntimeError(f"{route!r} is not an APIRoute: it cannot declare its scope")
        guarded = any(hasattr(d.call, "scopes") for d in route.dependant.dependencies)
        exempt = all((method, route.path) in EXEMPT for method in route.methods or ())
        if guarded == exempt:
            raise RuntimeError(f"{route.path}: declare the scope of this route, or add it to EXEMPT, but not both")
