"""Engine values to and from JSON. Times are ISO 8601 in UTC with microseconds, so nothing is lost.

Owns the wire format, which the server and the remote client share.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson
from starlette.responses import Response

from onetray.domain.task import RawJson

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HIDDEN = frozenset({"key"})
"""Internal numbers."""


def iso_time(us: int) -> str:
    """Formats microseconds since the epoch."""
    return (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def micros(text: str) -> int:
    """The inverse of iso_time. Raises ValueError if the text is not a time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs a time zone: append Z for UTC")
    return (at - _EPOCH) // timedelta(microseconds=1)


@lru_cache
def shown_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The public fields of a value class, and whether each is a time."""
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    # `actor` is only there to compute `actions`, except in an event, where it is who made the transition.
    extra, hidden = (["actions"], HIDDEN | {"actor"}) if hasattr(kind, "actions") else ([], HIDDEN)
    return tuple((n, n.endswith("_at") or n in ("ts", "at")) for n in names + extra if n not in hidden)


@lru_cache
def json_fields(kind: type) -> frozenset[str]:
    """Fields that hold users' JSON, which contains no engine values."""
    return frozenset(f.name for f in fields(kind) if f.type == "Any") if is_dataclass(kind) else frozenset()


def to_json(value: Any) -> Any:
    """An engine value as plain JSON types."""
    if (is_dataclass(value) and not isinstance(value, type)) or (
        isinstance(value, tuple) and hasattr(value, "_fields")
    ):
        user_json = json_fields(type(value))
        return {
            name: iso_time(field) if is_time and field is not None else field if name in user_json else to_json(field)
            for name, is_time in shown_fields(type(value))
            for field in (getattr(value, name),)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    return value


class Json(Response):
    """A JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, default=_default)


def _default(value: Any) -> orjson.Fragment:
    """Writes stored JSON without parsing it."""
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
