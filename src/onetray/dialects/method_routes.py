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
from onetray.dialects.kit import DialectRoute, Json, answers_with
from onetray.http.auth.scopes import allow
from onetray.http.services import services_of

F = TypeVar("F", bound=Callable[..., Any])


def route(method: str, path: str, *scopes: str, summary: str, sends: Any = None, **answer: Any) -> Callable[[F], F]:
    """Declares a method of a class of calls as a route, for callers that have one of these scopes.

    `answer` is what `answers_with` returns; with `sends`, `answers_always`.
    """
    if not scopes or "responses" not in answer:
        raise TypeError(f"{method} {path}: declare its scopes and its answer, by answers_with")

    def mark(function: F) -> F:
        function.route = method, path, scopes, sends, {"summary": summary, **answer}  # type: ignore[attr-defined]
        return function

    return mark


get, post, put = partial(route, "GET"), partial(route, "POST"), partial(route, "PUT")
patch, delete = partial(route, "PATCH"), partial(route, "DELETE")


def answers_always(title: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """Declares a response that is always the same. A method that returns None sends it."""
    return {**answers_with(title, body, status), "sends": body}


def router_of(calls: type[Call], prefix: str, tag: str) -> APIRouter:
    """The routes that a class declares, in their order. `self` of each is the call.

    A method that is not async runs in a thread, and may use the engine directly. What it returns is sent as JSON,
    with the declared status, unless it is a response.
    """
    router = APIRouter(prefix=prefix, tags=[tag], route_class=DialectRoute)
    for function in vars(calls).values():
        if hasattr(function, "route"):
            method, path, scopes, sends, declared = function.route
            is_async = inspect.iscoroutinefunction(function)
            endpoint = function if is_async else _in_thread(function, sends, declared["status_code"])
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


def _in_thread(function: Callable[..., Any], sends: Any, status: int) -> Any:
    def respond(self: Call, **arguments: Any) -> Response:
        value = function(self, **arguments)
        if value is None and sends is None:
            # Rather than null: its author has forgotten something.
            raise TypeError(f"{function.__qualname__} returned nothing: return a value, or declare answers_always")
        return value if isinstance(value, Response) else Json(sends if value is None else value, status)

    @wraps(function)
    async def in_thread(self: Call, **arguments: Any) -> Response:
        return await self.services.read(partial(respond, self, **arguments))

    return in_thread
