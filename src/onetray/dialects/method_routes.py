"""Routes of dialects as methods of a class: `self` is the request, a `Call`.

Owns how they are declared, and what runs them: in a thread, unless they are async.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from onetray.dialects.calls import Call
from onetray.dialects.kit import DialectRoute, Json
from onetray.http.auth.scopes import allow
from onetray.http.native_route import ANSWER, ANSWERS
from onetray.http.services import services_of

F = TypeVar("F", bound=Callable[..., Any])


def route(method: str, path: str, *scopes: str, **declared: Any) -> Callable[[F], F]:
    """Declares a method of a class of calls as a route, for callers that have one of these scopes.

    `declared` are options of FastAPI's routes: a summary, and the answer (`answers_with`).
    """

    def mark(function: F) -> F:
        function.route = method, path, scopes, declared  # type: ignore[attr-defined]
        return function

    return mark


get, post, put = partial(route, "GET"), partial(route, "POST"), partial(route, "PUT")
patch, delete = partial(route, "PATCH"), partial(route, "DELETE")


def router_of(calls: type[Call], prefix: str, tag: str) -> APIRouter:
    """The routes that a class declares, in their order. `self` of each is the call.

    A method that is not async runs in a thread, and may use the engine directly. What it returns is sent as JSON,
    with the declared status, unless it is a response; the declared example is sent if it returns None.
    """
    router = APIRouter(prefix=prefix, tags=[tag], route_class=DialectRoute)
    for function in vars(calls).values():
        if hasattr(function, "route"):
            method, path, scopes, declared = function.route
            endpoint = function if inspect.iscoroutinefunction(function) else _in_thread(function, declared)
            # FastAPI would look up the names of types in this module, and describe what the function returns.
            signature = inspect.signature(function, eval_str=True)
            self, *others = signature.parameters.values()
            call = self.replace(annotation=Annotated[calls, _caller(calls, scopes)])
            endpoint.__signature__ = signature.replace(parameters=[call, *others], return_annotation=Response)
            router.add_api_route(path, endpoint, methods=[method], **declared)
    return router


def _caller(calls: type[Call], scopes: tuple[str, ...]) -> Any:
    guard = allow(*scopes)

    async def call(request: Request) -> Call:
        return calls(services_of(request), await guard(request))

    call.scopes = scopes  # type: ignore[attr-defined]
    return Depends(call)


def _in_thread(function: Callable[..., Any], declared: dict[str, Any]) -> Any:
    status = declared["status_code"]
    example = ANSWERS[declared["responses"][status][ANSWER]].example

    def respond(self: Call, **arguments: Any) -> Response:
        value = function(self, **arguments)
        return value if isinstance(value, Response) else Json(example if value is None else value, status)

    @wraps(function)
    async def in_thread(self: Call, **arguments: Any) -> Response:
        return await self.services.read(partial(respond, self, **arguments))

    return in_thread
