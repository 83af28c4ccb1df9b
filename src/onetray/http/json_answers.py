"""JSON of requests and responses.

Engine values are encoded as remote/value_codec.py defines, which the client shares. Stored JSON is sent unparsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import orjson
from fastapi import Request
from starlette.responses import Response

from onetray.domain.checks import read_json
from onetray.domain.errors import InvalidInput, short_repr
from onetray.domain.task import RawJson
from onetray.remote.value_codec import is_record, iso_time, known_fields, micros, shown_fields

Encoder = Callable[[Any], Any]
BODILESS = frozenset({204, 304})
"""Statuses of responses without a body."""
JSON_TYPE = (b"content-type", b"application/json")


def to_json(value: Any) -> Any:
    """An engine value as plain JSON types."""
    encoder = _ENCODERS.get(type(value))
    return _encoder_of(value)(value) if encoder is None else encoder(value)


def _unchanged(value: Any) -> Any:
    return value


def _list(value: Any) -> Any:
    return [to_json(item) for item in value]


def _dict(value: Any) -> Any:
    return {name: to_json(item) for name, item in value.items()}


def _time(value: int | None) -> str | None:
    return None if value is None else iso_time(value)


_ENCODERS: dict[type, Encoder] = {
    **dict.fromkeys((str, int, float, bool, type(None), RawJson, orjson.Fragment), _unchanged),
    **dict.fromkeys((list, tuple, set, frozenset), _list),
    dict: _dict,
}
"""By the type of a value. Those of records are added when the first one is encoded."""


def _encoder_of(value: Any) -> Encoder:
    kind: Any = type(value)
    if is_record(value):
        encoder = _record_encoder(kind)
    elif isinstance(value, list | tuple | set | frozenset):
        encoder = _list
    else:
        encoder = _dict if isinstance(value, dict) else _unchanged
    _ENCODERS[kind] = encoder
    return encoder


def _record_encoder(kind: type) -> Encoder:
    """Decides once for each field how to encode it: most are texts and numbers, which stay as they are."""
    hints, shown_names = known_fields(kind), shown_fields(kind)
    names = [name for name, _ in shown_names]
    times = [name for name, is_time in shown_names if is_time]
    others = [name for name, is_time in shown_names if not is_time and not _is_plain(kind, hints.get(name))]

    def encode(value: Any) -> dict[str, Any]:
        shown = {name: getattr(value, name) for name in names}
        for name in times:
            shown[name] = _time(shown[name])
        for name in others:
            shown[name] = to_json(shown[name])
        return shown

    return encode


def _is_plain(kind: type, hint: Any) -> bool:
    """Whether values of this type are JSON as they are: texts, numbers, and users' JSON, which dataclasses call Any."""
    if hint is Any:
        return is_dataclass(kind)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return all(part in _PLAIN for part in parts)


_PLAIN = frozenset({str, int, float, bool, type(None)})


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

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """What Starlette does, for a body and a type that are always there."""
        if self.media_type != Json.media_type or self.status_code in BODILESS:
            super().init_headers(headers)
            return
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), JSON_TYPE]
        if headers:
            given = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
            names = [name for name, _ in given]
            self.raw_headers = [*given, *(header for header in self.raw_headers if header[0] not in names)]


def encoded(content: Any) -> bytes:
    return orjson.dumps(content, default=_default)


def _default(value: Any) -> orjson.Fragment:
    """Writes stored JSON without parsing it."""
    if isinstance(value, RawJson):
        return orjson.Fragment(bytes(value))
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


__all__ = ["Json", "iso_time", "micros", "read_object", "shown_fields", "to_json"]
