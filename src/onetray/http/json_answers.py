"""Answers as JSON. The shape of values is in remote/value_codec.py: the server writes it, the client reads it."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from onetray.domain.task import RawJson
from onetray.remote.value_codec import iso_time, micros, shown_fields, to_json


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


__all__ = ["Json", "iso_time", "micros", "shown_fields", "to_json"]
