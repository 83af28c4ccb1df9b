"""Validation errors in the words of AJV, the validator of most servers in JavaScript.

For dialects whose clients know such messages, for example `request/body/name must NOT have fewer than 2 characters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Scope

from onetray.http.problems import INVALID

PLACES = {"path": "params"}
MESSAGES = {
    "string_too_short": "must NOT have fewer than {min_length} characters",
    "string_too_long": "must NOT have more than {max_length} characters",
    "too_short": "must NOT have fewer than {min_length} items",
    "too_long": "must NOT have more than {max_length} items",
    "string_pattern_mismatch": 'must match pattern "{pattern}"',
    "literal_error": "must be equal to one of the allowed values",
    "greater_than_equal": "must be >= {ge}",
    "less_than_equal": "must be <= {le}",
    "string_type": "must be string",
    "list_type": "must be array",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be object"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be integer"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be boolean"),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid"),
        'must match format "date-time"',
    ),
}
"""By the type of pydantic's error."""
SHOWN = 5
"""How many errors of one request a message has."""


def ajv_detail(problem: Mapping[str, Any], scope: Scope) -> str:
    """What is wrong with a request, in AJV's words; the `detail` of any other problem."""
    _, is_query, parameter = str(problem.get("field", "")).partition("query.")
    detail = f"Unknown query parameter '{parameter}'" if is_query else str(problem["detail"])
    return "; ".join(map(ajv_message, scope.get(INVALID, [])[:SHOWN])) or detail


def ajv_message(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors, in AJV's words."""
    place: Sequence[Any] = error["loc"]
    type_, name = error["type"], place[-1]
    if type_ == "extra_forbidden" and place[0] == "query":
        return f"Unknown query parameter '{name}'"
    if type_ in ("missing", "extra_forbidden") and len(place) > 1:
        must = f"must have required property '{name}'" if type_ == "missing" else "must NOT have additional properties"
        return f"{_path(place[:-1])} {must}"
    message = MESSAGES.get(type_)
    return f"{_path(place)} {error['msg'] if message is None else message.format(**error.get('ctx', {}))}"


def _path(place: Sequence[Any]) -> str:
    return "/".join(("request", PLACES.get(str(place[0]), str(place[0])), *map(str, place[1:])))
