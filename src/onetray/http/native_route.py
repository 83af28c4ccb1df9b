"""Routes of the native API: each declares its body and its responses.

Owns what they share: unknown query parameters are rejected, `Idempotency-Key` works for every POST (idempotency.py),
and the description at /api/v1/openapi.json is built from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import cached_property
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Body
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute

from onetray.domain.checks import read_json
from onetray.domain.commands import Command
from onetray.domain.errors import InvalidInput
from onetray.domain.task import Verdict
from onetray.http.idempotency import KEY_HEADER, run_with_key
from onetray.http.openapi.answers import AnswerShape
from onetray.http.request import header_values

ANSWER = "x-answer"
ANSWERS: list[AnswerShape] = []
"""All responses. FastAPI gets only the index of one: it would add a content of its own by the class of the response,
and drop every null from the examples."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
GuardedHandler = Callable[[Request, dict[str, Any]], Coroutine[Any, Any, Response]]
"""Handles a request that passed its guards: their values come with it, by the names of the parameters."""


class Plan(NamedTuple):
    """The commands of a request, at most SHARED_COMMANDS, and what to answer when they have been carried out."""

    commands: Sequence[Command]
    respond: Callable[[Sequence[Verdict]], Response | Coroutine[Any, Any, Response]]
    """A coroutine if the answer takes longer. May raise."""


Prepare = Callable[[Request, bytes, Any], Plan | None]
"""Plans a request, by its body and its principal. None, or an error: its handler has to be called instead."""


class GuardedRoute(APIRoute):
    """Checks the scope before everything else, then rejects unknown query parameters."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        scopes = [scope for _, guard in self.guards for scope in guard.scopes]  # type: ignore[attr-defined]
        self.openapi_extra = {**(self.openapi_extra or {}), "x-onetray-scopes": scopes}

    @cached_property
    def guards(self) -> list[tuple[str, Callable[[Request], Coroutine[Any, Any, Any]]]]:
        """The guards by the names of their parameters. Not set in `__init__`: FastAPI builds the handler in its own."""
        found = [(d.name, d.call) for d in self.dependant.dependencies if hasattr(d.call, "scopes")]
        return [(name, call) for name, call in found if name is not None and call is not None]

    def get_route_handler(self) -> Handler:
        handler = self.handler()
        known = set(_query_names(self.dependant.query_params))

        async def handle(request: Request) -> Response:
            # First of all: a caller without the scope must not get a stored response either.
            guarded = {name: await guard(request) for name, guard in self.guards}
            if request.scope["query_string"]:
                _reject_unknown(request, known)
            return await handler(request, guarded)

        return handle

    def handler(self) -> GuardedHandler:
        """What handles a request that passed these checks."""
        return direct_handler(self) or _without_values(super().get_route_handler())


def _without_values(handler: Handler) -> GuardedHandler:
    """FastAPI's handler calls the guards itself."""

    async def handle(request: Request, guarded: dict[str, Any]) -> Response:
        return await handler(request)

    return handle


def direct_handler(route: GuardedRoute) -> GuardedHandler | None:
    """A handler that does what FastAPI's would, in a third of the time, for a route that needs little of it.

    Such a route has no parameters but the request, those of its path, guards and one body. None: it needs more.
    """
    needs, endpoint = route.dependant, route.endpoint
    others = (*needs.query_params, *needs.header_params, *needs.cookie_params, *needs.body_params[1:])
    if others or not iscoroutinefunction(endpoint) or len(route.guards) < len(needs.dependencies):
        return None
    bodies = [(field.name, field) for field in needs.body_params]
    if any(type(field.field_info) is not Body for _, field in bodies):
        return None

    async def handle(request: Request, values: dict[str, Any]) -> Response:
        if needs.request_param_name:
            values[needs.request_param_name] = request
        errors: list[Any] = []
        for field in needs.path_params:
            sent = request.path_params[field.alias]
            values[field.name] = _validated(field, sent, ("path", field.alias), errors)
        for name, field in bodies:
            values[name] = _validated(field, _parsed_body(await request.body()), ("body",), errors)
        if errors:
            raise RequestValidationError(errors)
        response: Response = await endpoint(**values)
        return response

    return handle


def _validated(field: Any, sent: Any, place: tuple[str, ...], errors: list[Any]) -> Any:
    value, found = field.validate(sent, {}, loc=place)
    errors += found or ()
    return value


def _parsed_body(raw: bytes) -> Any:
    if not raw:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return read_json(raw)
    except (orjson.JSONDecodeError, TypeError) as e:
        place = ("body", getattr(e, "pos", 0))
        raise RequestValidationError([{"type": "json_invalid", "loc": place, "msg": str(e), "input": {}}]) from None


class NativeRoute(GuardedRoute):
    """A route whose POST takes an `Idempotency-Key`."""

    def handler(self) -> GuardedHandler:
        handler = super().handler()
        takes_key = "POST" in (self.methods or ()) and not getattr(self.endpoint, "has_own_key", False)

        async def handle(request: Request, guarded: dict[str, Any]) -> Response:
            if KEY_HEADER in header_values(request.scope):
                return await run_with_key(request, self.path, lambda request: handler(request, guarded))
            return await handler(request, guarded)

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


def can_be_short(prepare: Prepare) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a route most of whose requests need nothing but their commands (short_requests.py)."""

    def mark(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        endpoint.prepare = prepare  # type: ignore[attr-defined]
        return endpoint

    return mark


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


def _query_names(params: Iterable[Any]) -> Iterator[str]:
    for param in params:
        model = param.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (field.alias or name for name, field in model.model_fields.items())
        else:
            yield param.alias


def _reject_unknown(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known:
            known_names = f"use {', '.join(sorted(known))}" if known else "this path has none"
            raise InvalidInput(f"there is no parameter {name[:50]!r}: {known_names}", field=f"query.{name[:50]}")
