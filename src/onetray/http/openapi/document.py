"""The description of the API as OpenAPI 3.1, made from what its routes say.

Owns what no route says itself: the schemas, the errors that all share, the token. It is made once for each app.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from onetray import __version__
from onetray.config import Limits
from onetray.domain.diagram import as_dict, diagram
from onetray.domain.errors import OnetrayError
from onetray.domain.lifecycle import MACHINES, STAGE
from onetray.http import problems
from onetray.http.auth.scopes import EXEMPT
from onetray.http.native_route import ANSWER, ANSWERS, BODIES
from onetray.http.openapi.answers import SCHEMAS, STRING, AnswerShape
from onetray.http.openapi.shapes import PLACE, record, ref
from onetray.http.schemas.bodies import commands_body
from onetray.http.schemas.sizes import LIMIT

ABOUT = """A durable job engine: at-least-once execution, at most one accepted outcome, one event per transition.

Errors are problems as RFC 9457 has them: `code` is for programs, `detail` says what to do. Lists have opaque cursors.
Times are ISO 8601 in UTC. Every POST takes an `Idempotency-Key`: sent again, it is carried out once and answered the
same, with `Idempotent-Replay: true`, for a day. HEAD is answered wherever GET is.
"""
FOR_READS = (400, 401, 403, 404, 413, 429, 500, 503)
FOR_WRITES = (*FOR_READS, 408, 409, 415)
FOR_RESULTS = (*FOR_READS, 409)
KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False, "example": "3f0c2b6e-order-17",
    "description": "Sent again with the same key, the request is carried out once.",
    "schema": {"type": "string", "minLength": 1, LIMIT: "key_chars", "pattern": "^[ -~]*[!-~][ -~]*$"},
}  # fmt: skip
REPLAYED = {
    "Idempotent-Replay": {
        "description": "`true` when this is the answer to an earlier request under the same key.", "schema": STRING,
    },
}  # fmt: skip

_STATES = {"type": "array", "items": {"type": "object"}}
_TABLE = record({"entity": STRING, "states": _STATES, "transitions": _STATES}, title="Lifecycle")
LIFECYCLE = AnswerShape("The lifecycle", ref("Lifecycle"), as_dict(STAGE))
LIFECYCLES = AnswerShape(
    "All lifecycles", record({"lifecycles": {"type": "array", "items": ref("Lifecycle")}}),
    {"lifecycles": [as_dict(machine) for machine in MACHINES.values()]},
)  # fmt: skip
DRAWING = AnswerShape("A Mermaid state diagram", STRING, "\n".join(diagram(STAGE)) + "\n", "text/plain")
DESCRIPTION = AnswerShape("OpenAPI 3.1", {"type": "object"}, {"openapi": "3.1.0"})
_SERVER = {
    "/healthz": AnswerShape("The process answers", record({"status": STRING}), {"status": "ok"}),
    "/readyz": AnswerShape("The database answers, too", record({"status": STRING}), {"status": "ok"}),
    "/api/v1/version": AnswerShape("The version", record({"version": STRING}), {"version": __version__}),
}


def description_of(app: FastAPI) -> dict[str, Any]:
    """The description of an app, made when it is first asked for."""
    if app.openapi_schema is None:
        app.openapi_schema = _describe(app)
    return app.openapi_schema


def _describe(app: FastAPI) -> dict[str, Any]:
    with warnings.catch_warnings():
        # HEAD has the name of its GET. It is left out below: nothing more is to be said of it.
        warnings.filterwarnings("ignore", message="Duplicate Operation ID")
        whole = get_openapi(
            title="onetray", version=__version__, openapi_version="3.1.0", description=ABOUT, routes=app.routes
        )
    for item in whole["paths"].values():
        item.pop("head", None)
    schemas = whole.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update({**SCHEMAS, "Lifecycle": _TABLE, **_bodies()})
    whole["components"]["responses"] = {f"Problem{status}": _refusal(status) for status in FOR_WRITES}
    whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    whole["security"] = [{"token": []}]
    for path, method, operation in _operations(whole):
        _complete(path, method, operation)
    limited: dict[str, Any] = _limited(whole, app.state.desk.engine.config.limits)
    return limited


_BOUNDS = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}


def _limited(found: Any, limits: Limits) -> Any:
    """The same with the numbers of this server's limits, where schemas name them."""
    if isinstance(found, list):
        return [_limited(one, limits) for one in found]
    if not isinstance(found, dict):
        return found
    whole = {name: _limited(value, limits) for name, value in found.items() if name != LIMIT}
    if LIMIT in found:
        for schema in whole.get("anyOf", [whole]):
            if schema["type"] in _BOUNDS:
                schema[_BOUNDS[schema["type"]]] = getattr(limits, found[LIMIT])
    return whole


def _operations(whole: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in whole["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    """What an operation shares with all others."""
    answers = operation["responses"]
    answers.pop("422", None)
    for answer in answers.values():
        if ANSWER in answer:
            answer["content"] = ANSWERS[answer.pop(ANSWER)].content
    if (method.upper(), path) in EXEMPT:
        operation["security"] = []
        if path in _SERVER:
            answers["200"] = {"description": _SERVER[path].title, "content": _SERVER[path].content}
        for status in (500, 503):
            answers.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
        return
    shared = FOR_WRITES if method == "post" else FOR_RESULTS if path.endswith("/result") else FOR_READS
    for status in shared:
        answers.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    scopes = operation.get("x-onetray-scopes")
    if scopes:
        needs = f"Needs the scope {' or '.join(f'`{scope}`' for scope in scopes)}."
        operation["description"] = f"{operation.get('description', '')}\n\n{needs}".strip()
        if method == "post":
            operation.setdefault("parameters", []).append(KEY)
            for status, answer in answers.items():
                if status.startswith("2"):
                    answer["headers"] = REPLAYED


def _bodies() -> dict[str, Any]:
    """The schemas of all bodies, and of what they are made of."""
    # That of commands is made again: others may have been declared since.
    models = BODIES | {"CommandsBody": commands_body()}
    adapters = [(name, "validation", TypeAdapter(model)) for name, model in models.items()]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=PLACE + "{model}")  # type: ignore[arg-type]
    return dict(found["$defs"])


def _refusal(status: int) -> dict[str, Any]:
    """All errors of one status, each with what it says."""
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
