"""Routes of the native API: each declares its body and its responses.

Owns what they share: unknown query parameters are rejected, `Idempotency-Key` works for every POST (idempotency.py),
and the description at /api/v1/openapi.json is built from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute

from onetray.domain.errors import InvalidInput
from onetray.http.idempotency import run_with_key
from onetray.http.openapi.answers import AnswerShape

ANSWER = "x-answer"
ANSWERS: list[AnswerShape] = []
"""All responses. FastAPI gets only the index of one: it would add a content of its own by the class of the response,
and drop every null from the examples."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class GuardedRoute(APIRoute):
    """Checks the scope before everything else, then rejects unknown query parameters."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.guards = [d.call for d in self.dependant.dependencies if hasattr(d.call, "scopes")]
        scopes = [scope for guard in self.guards for scope in guard.scopes]  # type: ignore[union-attr]
        self.openapi_extra = {**(self.openapi_extra or {}), "x-onetray-scopes": scopes}

    def get_route_handler(self) -> Handler:
        handler = self.handler()
        known = {field.alias for field in self.dependant.query_params}

        async def handle(request: Request) -> Response:
            for guard in self.guards:
                # First of all: a caller without the scope must not get a stored response either.
                await guard(request)  # type: ignore[misc]
            if request.scope["query_string"]:
                _reject_unknown(request, known)
            return await handler(request)

        return handle

    def handler(self) -> Handler:
        """What handles a request that passed these checks."""
        return super().get_route_handler()


class NativeRoute(GuardedRoute):
    """A route whose POST takes an `Idempotency-Key`."""

    def handler(self) -> Handler:
        handler = super().handler()
        takes_key = "POST" in (self.methods or ()) and not getattr(self.endpoint, "has_own_key", False)

        async def handle(request: Request) -> Response:
            if "idempotency-key" in request.headers:
                return await run_with_key(request, self.path, handler)
            return await handler(request)

        return handle if takes_key else handler


def also_head(routes: Iterable[BaseRoute]) -> None:
    """Answer HEAD wherever GET is allowed, for probes and caches. The server omits the body."""
    for route in routes:
        methods = getattr(route, "methods", None) or set()
        if "GET" in methods:
            methods.add("HEAD")


def own_key(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a route that handles `Idempotency-Key` itself."""
    endpoint.has_own_key = True  # type: ignore[attr-defined]
    return endpoint


def returns(answer: AnswerShape, status: int = 200, *, also: dict[int, AnswerShape] | None = None) -> dict[str, Any]:
    """Declares a route's responses, for its decorator."""
    shapes = {status: answer, **(also or {})}
    return {
        "status_code": status,
        "response_description": answer.title,
        "responses": {code: {"description": a.title, ANSWER: _index_of(a)} for code, a in shapes.items()},
    }


def _index_of(answer: AnswerShape) -> int:
    if answer not in ANSWERS:
        ANSWERS.append(answer)
    return ANSWERS.index(answer)


def accepts(*models: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """Declares a route's request body, for its decorator."""
    BODIES.update({model.__name__: model for model in models})
    return accepts_named({model.__name__: _examples(model) for model in models}, required=required)


def accepts_named(examples_by_name: dict[str, list[Any]], *, required: bool = True) -> dict[str, Any]:
    """The same for bodies that are built when the description is: by their names, with examples of each."""
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in examples_by_name]
    examples = {name: {"value": value} for name, values in examples_by_name.items() for value in values[:1]}
    content = {"schema": refs[0] if len(refs) == 1 else {"oneOf": refs}, "examples": examples}
    return {"openapi_extra": {"requestBody": {"required": required, "content": {"application/json": content}}}}


BODIES: dict[str, type[BaseModel]] = {}
"""All declared request bodies."""


def _examples(model: type[BaseModel]) -> list[Any]:
    extra: Any = model.model_config.get("json_schema_extra") or {}
    return list(extra.get("examples", []))


def _reject_unknown(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known:
            known_names = f"use {', '.join(sorted(known))}" if known else "this path has none"
            raise InvalidInput(f"there is no parameter {name[:50]!r}: {known_names}", field=f"query.{name[:50]}")
