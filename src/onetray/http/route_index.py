"""Finds the route of a request by its method and the segments of its path, and calls it.

FastAPI's router tries its routes one after the other, most of them twice, behind several layers of middleware that we
do not need: more than half of a short request. What the index does not find, the router answers: 404, or 405.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from onetray.http import problems
from onetray.http.auth.scopes import must_be_guarded
from onetray.http.native_route import Handler
from onetray.http.request import BufferedRequest

WHOLE_SEGMENT = re.compile(r"\{\w+\}")
MAX_SEGMENTS = 16
"""Paths with more are left to the router."""
NO_STACK = AsyncExitStack()
"""FastAPI demands these of a request, for dependencies with `yield` and for forms. No route has any."""
STACKS = dict.fromkeys(("fastapi_middleware_astack", "fastapi_inner_astack", "fastapi_function_astack"), NO_STACK)


class Candidate(NamedTuple):
    """A route that may match: the fixed segments of its path and its parameters, with their positions."""

    fixed: tuple[tuple[int, str], ...]
    params: tuple[tuple[int, str], ...] | None
    """None if a parameter is not a whole segment: then the route's own pattern decides."""
    route: APIRoute
    handler: Handler

    def match(self, segments: list[str], scope: Scope) -> Scope | None:
        """What the scope of a request to this route gets, or None if its path is another one."""
        for i, part in self.fixed:
            if segments[i] != part:
                return None
        if self.params is None or scope.get("root_path"):
            match, child_scope = self.route.matches(scope)
            return child_scope if match is Match.FULL else None
        values = {name: segments[i] for i, name in self.params}
        if "" in values.values():
            return None
        return {"endpoint": self.route.endpoint, "route": self.route, "path_params": values}


class RouteTable:
    """Routes by what a request says. Their order counts as in a router."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.candidates: dict[tuple[str, int], list[Candidate]] = {}
        self._fixed: dict[tuple[str, str], Candidate] = {}
        """Routes without parameters, by method and path."""
        for route in routes:
            assert isinstance(route, APIRoute)
            self._add(route)

    def _add(self, route: APIRoute) -> None:
        for dependency in route.dependant.dependencies:
            if inspect.isgeneratorfunction(dependency.call) or inspect.isasyncgenfunction(dependency.call):
                raise RuntimeError(f"{route.path}: a dependency with yield would never be ended")
        segments = route.path.split("/")
        fixed = tuple((i, part) for i, part in enumerate(segments) if "{" not in part)
        lengths: Iterable[int] = (len(segments),)
        if ":path}" in route.path:
            # This parameter may have slashes: only what is before it has a fixed position.
            at = next(i for i, part in enumerate(segments) if ":path}" in part)
            fixed = tuple((i, part) for i, part in fixed if i < at)
            lengths = range(len(segments), MAX_SEGMENTS + 1)
        candidate = Candidate(fixed, _whole_segments(segments), route, route.get_route_handler())
        for method in route.methods or ():
            for length in lengths:
                self.candidates.setdefault((method, length), []).append(candidate)
            # Unless an earlier route has a parameter there.
            if candidate.params == () and self.find({"method": method, "path": route.path}) is candidate.handler:
                self._fixed[method, route.path] = candidate

    def find(self, scope: Scope) -> Handler | None:
        """The handler of a request's route. The scope gets what a router would add to it."""
        fixed = self._fixed.get((scope["method"], scope["path"]))
        if fixed is not None and not scope.get("root_path"):
            scope["endpoint"], scope["route"], scope["path_params"] = fixed.route.endpoint, fixed.route, {}
            return fixed.handler
        segments = scope["path"].split("/")
        for candidate in self.candidates.get((scope["method"], len(segments)), ()):
            found = candidate.match(segments, scope)
            if found is not None:
                scope.update(found)
                return candidate.handler
        return None


class SameRoutes(tuple[BaseRoute, ...]):
    """Routes as a key: equal to the same objects alone. They have no hash of their own."""

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameRoutes) and [*map(id, self)] == [*map(id, other)]


table_of = lru_cache(maxsize=8)(RouteTable)
"""The apps of a process share the tables of routes that they share."""


class RouteIndex:
    """Calls the routes of an app."""

    def __init__(self, routes: Iterable[BaseRoute], router: ASGIApp) -> None:
        self._table, self._router = table_of(SameRoutes(routes)), router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._table.find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._router(scope, receive, send)
            return
        scope.update(STACKS)
        request = BufferedRequest(scope, receive, send)
        try:
            response = await found(request)
        except Exception as error:
            response = problems.response_to(error, request)
        at_once: Callable[[Response], bool] | None = getattr(send, "send_at_once", None)
        if at_once is None or not at_once(response):
            await response(scope, receive, send)


def add_routes(app: FastAPI, routes: list[BaseRoute]) -> None:
    """Let an app serve routes as they are. Raises RuntimeError for one that declares no scope.

    Not by `include_router`: FastAPI would analyse all of them again during the first request that has no route.
    """
    must_be_guarded(routes)
    app.state.guarded += routes
    app.router.routes += routes


def _whole_segments(segments: list[str]) -> tuple[tuple[int, str], ...] | None:
    """The parameters of a path, if each is a whole segment of text."""
    params = [(i, part) for i, part in enumerate(segments) if "{" in part]
    if not all(WHOLE_SEGMENT.fullmatch(part) for _, part in params):
        return None
    return tuple((i, part[1:-1]) for i, part in params)
