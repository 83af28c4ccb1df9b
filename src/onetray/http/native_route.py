"""Routes of the native API: each says what it takes and gives, and refuses what it does not know.

Owns what they share: unknown parameters of the query are refused by name, `Idempotency-Key` is read (idempotency.py),
and the description at /api/v1/openapi.json is made from what they say here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute

from onetray.domain.errors import InvalidInput
from onetray.http.idempotency import under_its_key
from onetray.http.openapi.answers import AnswerShape

ANSWER = "x-answer"
ANSWERS: list[AnswerShape] = []
"""What routes answer. FastAPI is told the number alone: it would mix what it thinks of the response's class into the
content, and leave every null out of the examples."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class NativeRoute(APIRoute):
    def __init__(self, path: str, endpoint: Callable[..., Any], **said: Any) -> None:
        super().__init__(path, endpoint, **said)
        self.guards = [d.call for d in self.dependant.dependencies if hasattr(d.call, "scopes")]
        scopes = [scope for guard in self.guards for scope in guard.scopes]  # type: ignore[union-attr]
        self.openapi_extra = {**(self.openapi_extra or {}), "x-onetray-scopes": scopes}

    def get_route_handler(self) -> Handler:
        go = super().get_route_handler()
        known = {field.alias for field in self.dependant.query_params}
        keyed = "POST" in (self.methods or ()) and not getattr(self.endpoint, "has_own_key", False)

        async def handle(request: Request) -> Response:
            for guard in self.guards:
                # Before anything is said, or given again: the answer is for whoever may ask.
                await guard(request)  # type: ignore[misc]
            if request.scope["query_string"]:
                _refuse_unknown(request, known)
            if keyed and "idempotency-key" in request.headers:
                return await under_its_key(request, self.path, go)
            return await go(request)

        return handle


def also_head(routes: Iterable[BaseRoute]) -> None:
    """Have HEAD answered wherever GET is: probes and caches ask that way. The server leaves the body out."""
    for route in routes:
        methods = getattr(route, "methods", None) or set()
        if "GET" in methods:
            methods.add("HEAD")


def own_key(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a route that knows itself what an `Idempotency-Key` means to it."""
    endpoint.has_own_key = True  # type: ignore[attr-defined]
    return endpoint


def gives(answer: AnswerShape, status: int = 200, *, also: dict[int, AnswerShape] | None = None) -> dict[str, Any]:
    """What a route answers, for its decorator."""
    each = {status: answer, **(also or {})}
    return {
        "status_code": status,
        "response_description": answer.title,
        "responses": {code: {"description": a.title, ANSWER: _noted(a)} for code, a in each.items()},
    }


def _noted(answer: AnswerShape) -> int:
    if answer not in ANSWERS:
        ANSWERS.append(answer)
    return ANSWERS.index(answer)


def takes(*models: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """The body that a route reads, for its decorator."""
    BODIES.update({model.__name__: model for model in models})
    refs = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    examples = {m.__name__: {"value": value} for m in models for value in _examples(m)[:1]}
    content = {"schema": refs[0] if len(refs) == 1 else {"oneOf": refs}, "examples": examples}
    return {"openapi_extra": {"requestBody": {"required": required, "content": {"application/json": content}}}}


BODIES: dict[str, type[BaseModel]] = {}
"""Every body that a route reads."""


def _examples(model: type[BaseModel]) -> list[Any]:
    extra: Any = model.model_config.get("json_schema_extra") or {}
    return list(extra.get("examples", []))


def _refuse_unknown(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known:
            there = f"there are: {', '.join(sorted(known))}" if known else "there is none here"
            raise InvalidInput(f"there is no parameter {name[:50]!r}; {there}", field=f"query.{name[:50]}")
