"""JSON of requests and responses.

Engine values are encoded as remote/value_codec.py defines, which the client shares. Stored JSON is sent unparsed.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from onetray.domain.checks import read_json
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.task import RawJson
from onetray.remote.value_codec import is_record, iso_time, micros, public_values, shown_fields


@lru_cache
def json_fields(kind: type) -> frozenset[str]:
    """Fields that hold users' JSON, which contains no engine values."""
    return frozenset(f.name for f in fields(kind) if f.type == "Any") if is_dataclass(kind) else frozenset()


def to_json(value: Any) -> Any:
    """An engine value as plain JSON types."""
    if is_record(value):
        kind: Any = type(value)
        user_json = json_fields(kind)
        return {name: v if name in user_json else to_json(v) for name, v in public_values(value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    return value


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises InvalidInput for an integer of more than 64 bits: it is never rounded."""
    try:
        body = read_json(await request.body())
    except (orjson.JSONDecodeError, TypeError) as e:
        raise InvalidInput(f"the body is not valid JSON: {e}", field="body") from None
    if not isinstance(body, dict):
        raise InvalidInput(f"the body must be an object, not {short_repr(body)}", field="body")
    return body


class Json(Response):
    """A JSON response. Stored JSON is written unparsed."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


def encoded(content: Any) -> bytes:
    return orjson.dumps(content, default=_default)


def _default(value: Any) -> orjson.Fragment:
    """Writes stored JSON without parsing it."""
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


__all__ = ["Json", "iso_time", "micros", "read_object", "shown_fields", "to_json"]
