"""Values as JSON, and back: times as ISO 8601 in UTC with microseconds, so that nothing is lost on the way.

Owns the shape of what crosses the wire. The server and the remote client share it.
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
"""Numbers that mean something inside alone."""


def iso_time(us: int) -> str:
    """Microseconds since the epoch as text."""
    return (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def micros(text: str) -> int:
    """The same back. ValueError for what is no time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs its zone: end it with Z")
    return (at - _EPOCH) // timedelta(microseconds=1)


@lru_cache
def shown_fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a value that are shown, and whether they are times."""
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    # The kind of actor that asked is told by what it may do. An event's actor is who did it.
    told, hidden = (["actions"], HIDDEN | {"actor"}) if hasattr(kind, "actions") else ([], HIDDEN)
    return tuple((n, n.endswith("_at") or n in ("ts", "at")) for n in names + told if n not in hidden)


@lru_cache
def json_fields(kind: type) -> frozenset[str]:
    """Those that hold somebody's own JSON: nothing in it is a value of ours."""
    return frozenset(f.name for f in fields(kind) if f.type == "Any") if is_dataclass(kind) else frozenset()


def to_json(value: Any) -> Any:
    """A value of the engine's as JSON knows it."""
    if (is_dataclass(value) and not isinstance(value, type)) or (
        isinstance(value, tuple) and hasattr(value, "_fields")
    ):
        as_it_is = json_fields(type(value))
        return {
            name: iso_time(found) if is_time and found is not None else found if name in as_it_is else to_json(found)
            for name, is_time in shown_fields(type(value))
            for found in (getattr(value, name),)
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    return value


class Json(Response):
    """An answer as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, default=_passed_on)


def _passed_on(value: Any) -> orjson.Fragment:
    """What was stored as JSON goes out as it is: nothing is read and written again."""
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    raise TypeError(f"{type(value).__name__} is no JSON")
