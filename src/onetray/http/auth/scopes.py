"""Who asks, and what they may: every route names the scope that it needs.

Owns the rule that a route without one does not start. Who a token stands for is in middleware.py.
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

EXEMPT = frozenset(
    (method, path) for method in ("GET", "HEAD") for path in ("/", "/healthz", "/readyz", "/api/v1/version")
)
"""What anybody may ask who reaches the server: exact paths, nothing below them."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the name that events carry, and what the token allows. The namespace comes from here alone."""

    name: str
    namespace: str
    scopes: frozenset[str]
    token: str | None = None
    """The public id of the token; None for whoever reaches a server without tokens."""

    def has(self, *scopes: str) -> bool:
        """Whether it has one of these scopes. Admins have all."""
        return not self.scopes.isdisjoint((*scopes, ADMIN))


NOBODY = Principal("anonymous", "default", frozenset())
"""Whoever asks what anybody may ask."""


def principal_of(request: Request) -> Principal:
    """Put there by the gate, before any route is looked for."""
    principal: Principal = request.scope["onetray.principal"]
    return principal


def allow(*scopes: str) -> Callable[[Request], Coroutine[Any, Any, Principal]]:
    """What a route depends on: a principal that has one of these scopes. Admins have all."""

    # Async, or FastAPI would ask it in a thread.
    async def allowed(request: Request) -> Principal:
        principal = principal_of(request)
        if not principal.has(*scopes):
            has = ", ".join(sorted(principal.scopes)) or "none"
            raise Forbidden(
                f"this needs the scope {' or '.join(scopes)}, and the token {principal.name!r} has {has}: "
                f"create one with `onetray token create --scope {scopes[0]}`",
                needs=list(scopes),
            )
        return principal

    allowed.scopes = scopes  # type: ignore[attr-defined]
    return allowed


Reader = Depends(allow(READ))
Submitter = Depends(allow(SUBMIT))
AtWork = Depends(allow(WORK))
Operator = Depends(allow(OPERATE))
Admin = Depends(allow(ADMIN))


async def check_scope_early(scope: Scope) -> None:
    """Raise Forbidden if the token of a request has not the scope that its route needs. Routes ask that themselves;
    this is for what is to be known before its body is read.
    """
    for route in scope["app"].state.guarded:
        if route.matches(scope)[0] is Match.FULL:
            for dependency in route.dependant.dependencies:
                if hasattr(dependency.call, "scopes"):
                    await dependency.call(Request(scope))
            return


def must_be_guarded(routes: Iterable[BaseRoute]) -> None:
    """Refuse to start with a route that says neither what it needs nor that anybody may call it."""
    for route in routes:
        if not isinstance(route, APIRoute):
            raise RuntimeError(f"{route!r} is no route of the API: it cannot say which scope it needs")
        guarded = any(hasattr(d.call, "scopes") for d in route.dependant.dependencies)
        exempt = all((method, route.path) in EXEMPT for method in route.methods or ())
        if guarded == exempt:
            raise RuntimeError(f"{route.path}: a route names the scope it needs, or is in EXEMPT")
