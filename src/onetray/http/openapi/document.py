"""The OpenAPI 3.1 descriptions of the native API and of dialects, generated from their routes.

Owns the parts that routes do not declare: the schemas, the common errors, authentication. The native one is built once
per app. The errors of a dialect are those that its `shape` makes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from onetray import __version__
from onetray.config import Limits
from onetray.domain.diagram import as_dict, diagram
from onetray.domain.errors import OnetrayError
from onetray.domain.lifecycle import MACHINES, STAGE
from onetray.http import problems
from onetray.http.auth.scopes import EXEMPT
from onetray.http.dialects import Dialect
from onetray.http.native_route import ANSWER, ANSWERS, BODIES
from onetray.http.openapi.answers import SCHEMAS, STRING, AnswerShape
from onetray.http.openapi.shapes import SCHEMA_PREFIX, record, ref, schema_like
from onetray.http.schemas.base import SOME_ID
from onetray.http.schemas.bodies import COMMANDS_BODY, commands_body
from onetray.http.schemas.sizes import LIMIT

ABOUT = """A durable job engine: at-least-once execution, at most one accepted outcome, one event per transition.

Errors are problem documents (RFC 9457): `code` is for programs, `detail` says what to do. Lists are paged by opaque
cursors. Times are ISO 8601 in UTC. Every POST accepts an `Idempotency-Key`: for a day, a repeated request runs only
once and gets the same response, with `Idempotent-Replay: true`. HEAD works wherever GET does.
"""
READ_ERRORS = (400, 401, 403, 404, 413, 429, 500, 503)
WRITE_ERRORS = (*READ_ERRORS, 408, 409, 415)
RESULT_ERRORS = (*READ_ERRORS, 409)
_SECURITY = {"token": {"type": "http", "scheme": "bearer"}}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False, "example": "3f0c2b6e-order-17",
    "description": "A request repeated with the same key runs only once.",
    "schema": {"type": "string", "minLength": 1, LIMIT: "key_chars", "pattern": "^[ -~]*[!-~][ -~]*$"},
}  # fmt: skip
REPLAYED = {
    "Idempotent-Replay": {
        "description": "`true` if this is the stored response to an earlier request with the same key.",
        "schema": STRING,
    },
}  # fmt: skip

_STATES = {"type": "array", "items": {"type": "object"}}
_LIFECYCLE_SCHEMA = record({"entity": STRING, "states": _STATES, "transitions": _STATES}, title="Lifecycle")
LIFECYCLE = AnswerShape("The lifecycle", ref("Lifecycle"), as_dict(STAGE))
LIFECYCLES = AnswerShape(
    "All lifecycles", record({"lifecycles": {"type": "array", "items": ref("Lifecycle")}}),
    {"lifecycles": [as_dict(machine) for machine in MACHINES.values()]},
)  # fmt: skip
DRAWING = AnswerShape("The lifecycle as a Mermaid diagram", STRING, "\n".join(diagram(STAGE)) + "\n", "text/plain")
DESCRIPTION = AnswerShape("The OpenAPI 3.1 description", {"type": "object"}, {"openapi": "3.1.0"})
_SERVER_ANSWERS = {
    "/healthz": AnswerShape("The process responds", record({"status": STRING}), {"status": "ok"}),
    "/readyz": AnswerShape("The process and the database respond", record({"status": STRING}), {"status": "ok"}),
    "/api/v1/version": AnswerShape("The version", record({"version": STRING}), {"version": __version__}),
}


def description_of(app: FastAPI) -> dict[str, Any]:
    """The app's description, built on first use."""
    if app.openapi_schema is None:
        app.openapi_schema = _describe(app)
    return app.openapi_schema


def _describe(app: FastAPI) -> dict[str, Any]:
    document = _declared(app.state.described, "onetray", ABOUT)
    document["components"]["schemas"].update({**SCHEMAS, "Lifecycle": _LIFECYCLE_SCHEMA, **_bodies()})
    responses = {f"Problem{status}": _error_response(status) for status in WRITE_ERRORS}
    document["components"] |= {"responses": responses, "securitySchemes": _SECURITY}
    document["security"] = [{"token": []}]
    for path, method, operation in _operations(document):
        _complete(path, method, operation)
    limited: dict[str, Any] = _with_limits(document, app.state.services.engine.config.limits)
    return limited


def _declared(routes: Sequence[BaseRoute], title: str, description: str) -> dict[str, Any]:
    """What the routes declare: their operations, without HEAD and without FastAPI's own errors."""
    with warnings.catch_warnings():
        # HEAD shares its operation id with GET. The loop below removes it.
        warnings.filterwarnings("ignore", message="Duplicate Operation ID")
        document = get_openapi(
            title=title, version=__version__, openapi_version="3.1.0", description=description, routes=routes
        )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for item in document["paths"].values():
        item.pop("head", None)
    for _, _, operation in _operations(document):
        operation["responses"].pop("422", None)
        for answer in operation["responses"].values():
            if ANSWER in answer:
                shape = ANSWERS[answer.pop(ANSWER)]
                answer["content"] = shape.content
                if shape.headers:
                    answer["headers"] = shape.headers
    return document


_BOUNDS = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}


def _with_limits(node: Any, limits: Limits) -> Any:
    """Replace the names of limits in a schema by this server's numbers."""
    if isinstance(node, list):
        return [_with_limits(item, limits) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {name: _with_limits(value, limits) for name, value in node.items() if name != LIMIT}
    if LIMIT in node:
        for option in schema.get("anyOf", [schema]):
            if option["type"] in _BOUNDS:
                option[_BOUNDS[option["type"]]] = getattr(limits, node[LIMIT])
    return schema


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    """Add what all operations have in common."""
    answers = operation["responses"]
    if (method.upper(), path) in EXEMPT:
        operation["security"] = []
        if path in _SERVER_ANSWERS:
            answers["200"] = {"description": _SERVER_ANSWERS[path].title, "content": _SERVER_ANSWERS[path].content}
        for status in (500, 503):
            answers.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
        return
    shared = WRITE_ERRORS if method == "post" else RESULT_ERRORS if path.endswith("/result") else READ_ERRORS
    for status in shared:
        answers.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    if operation.get("x-onetray-scopes"):
        _name_scopes(operation)
        if method == "post":
            operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
            for status, answer in answers.items():
                if status.startswith("2"):
                    answer["headers"] = {**answer.get("headers", {}), **REPLAYED}


def _name_scopes(operation: dict[str, Any]) -> None:
    """Name the scopes of an operation in its description."""
    needs = f"Needs the scope {' or '.join(f'`{scope}`' for scope in operation['x-onetray-scopes'])}."
    operation["description"] = f"{operation.get('description', '')}\n\n{needs}".strip()


def _bodies() -> dict[str, Any]:
    """The schemas of all request bodies and their parts."""
    # The body of commands is derived again: more may have been declared since.
    models = BODIES | {COMMANDS_BODY: commands_body()}
    adapters = [(name, "validation", TypeAdapter(model)) for name, model in models.items()]
    _, generated = TypeAdapter.json_schemas(adapters, ref_template=SCHEMA_PREFIX + "{model}")  # type: ignore[arg-type]
    return dict(generated["$defs"])


def _error_response(status: int) -> dict[str, Any]:
    """All errors with one status, each as an example."""
    examples = {
        error.code: {"value": problems.problem(status, error.code, _first_line(error))}
        for error in _errors(OnetrayError)
        if error.status == status and status != 500
    }
    if not examples:
        code = "internal" if status == 500 else "refused"
        examples = {code: {"value": problems.problem(status, code, problems.TITLES.get(status, "Refused"))}}
    content = {"schema": ref("Problem"), "examples": dict(sorted(examples.items()))}
    return {"description": problems.TITLES.get(status, "Refused"), "content": {problems.MEDIA_TYPE: content}}


def _errors(root: type[OnetrayError]) -> Iterator[type[OnetrayError]]:
    for error in root.__subclasses__():
        yield error
        yield from _errors(error)


def _first_line(error: type[OnetrayError]) -> str:
    return (error.__doc__ or "").strip().split("\n")[0]


def describe_dialect(dialect: Dialect, limits: Limits) -> dict[str, Any]:
    """The document of a dialect, with the limits of a server."""
    document = _declared(dialect.router.routes, dialect.title, dialect.description)
    errors = {status: _dialect_error(dialect, status) for status in WRITE_ERRORS}
    components = {str(status): error for status, error in errors.values()}
    document["components"] |= {"responses": components, "securitySchemes": _SECURITY}
    document["security"] = [{"token": []}]
    for _, method, operation in _operations(document):
        for status in READ_ERRORS if method == "get" else WRITE_ERRORS:
            shown = str(errors[status][0])
            operation["responses"].setdefault(shown, {"$ref": f"#/components/responses/{shown}"})
        _name_scopes(operation)
    limited: dict[str, Any] = _with_limits(document, limits)
    return limited


def _dialect_error(dialect: Dialect, status: int) -> tuple[int, dict[str, Any]]:
    """The status of an error in the dialect, and its response: `shape` shows what the format is."""
    title = problems.TITLES[status]
    # What a shape may use of a request; its id is the same each time.
    scope = {"type": "http", "method": "GET", "path": dialect.prefix, "query_string": b"", "headers": [],
             "onetray.request_id": SOME_ID}  # fmt: skip
    response = dialect.shape(problems.problem(status, title.lower().replace(" ", "_"), title), scope, None)
    example = orjson.loads(bytes(response.body))
    content = {"schema": schema_like(example), "example": example}
    media_type = response.headers["content-type"].partition(";")[0]
    return response.status_code, {"description": title, "content": {media_type: content}}
