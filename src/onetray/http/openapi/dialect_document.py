"""The OpenAPI 3.1 document of a dialect, from its routes and from the errors that its `shape` makes.

Owns what is added to the declarations of the routes: the errors in the dialect's format, and authentication.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.config import Limits
from onetray.http import problems
from onetray.http.dialects import Dialect
from onetray.http.openapi.document import (
    READ_ERRORS,
    SECURITY,
    WRITE_ERRORS,
    document_of,
    name_scopes,
    operations_of,
    with_limits,
)
from onetray.http.openapi.shapes import schema_like
from onetray.http.schemas.base import SOME_ID


def describe_dialect(dialect: Dialect, limits: Limits) -> dict[str, Any]:
    """The document of a dialect, with the limits of a server."""
    document = document_of(dialect.router.routes, dialect.title, dialect.description)
    errors = {status: _error(dialect, status) for status in WRITE_ERRORS}
    components = {str(status): error for status, error in errors.values()}
    document["components"] |= {"responses": components, "securitySchemes": SECURITY}
    document["security"] = [{"token": []}]
    for _, method, operation in operations_of(document):
        for status in READ_ERRORS if method == "get" else WRITE_ERRORS:
            shown = str(errors[status][0])
            operation["responses"].setdefault(shown, {"$ref": f"#/components/responses/{shown}"})
        name_scopes(operation)
    limited: dict[str, Any] = with_limits(document, limits)
    return limited


def _error(dialect: Dialect, status: int) -> tuple[int, dict[str, Any]]:
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
