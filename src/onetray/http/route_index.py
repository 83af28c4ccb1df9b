"""Finds the route of a request by its method and the segments of its path.

A router tries its routes one after the other, and FastAPI's included ones twice: with some hundred routes that takes a
quarter of a short request. This finds the few that can match. If none does, the router answers: 404, or 405.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

MAX_SEGMENTS = 16
FOUND = "onetray.route"
"""Key in a request's scope: its route."""
Candidate = tuple[tuple[tuple[int, str], ...], APIRoute]
"""The fixed segments of a path, with their positions, and the route."""


class RouteIndex(BaseRoute):
    """All routes of an app, as its first route. The order of the routes counts as in a router."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._candidates: dict[tuple[str, int], list[Candidate]] = {}
        for route in routes:
            if isinstance(route, APIRoute):
                self._add(route)

    def _add(self, route: APIRoute) -> None:
        segments = route.path.split("/")
        fixed = tuple((i, part) for i, part in enumerate(segments) if "{" not in part)
        lengths: Iterable[int] = (len(segments),)
        if ":path}" in route.path:
            # This parameter may have slashes: only what is before it has a fixed position.
            at = next(i for i, part in enumerate(segments) if ":path}" in part)
            fixed = tuple((i, part) for i, part in fixed if i < at)
            lengths = range(len(segments), MAX_SEGMENTS + 1)
        for method in route.methods or ():
            for length in lengths:
                self._candidates.setdefault((method, length), []).append((fixed, route))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope.get("root_path"):
            return Match.NONE, {}
        segments = scope["path"].split("/")
        for fixed, route in self._candidates.get((scope["method"], len(segments)), ()):
            if all(segments[i] == part for i, part in fixed):
                match, child_scope = route.matches(scope)
                if match is Match.FULL:
                    return match, {**child_scope, FOUND: route, "route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[FOUND].handle(scope, receive, send)
