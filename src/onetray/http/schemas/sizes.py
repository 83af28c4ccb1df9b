"""Limits on the contents of a large body: items of lists, objects, unknown fields.

Checked against the body's schema before pydantic runs, which checks every item and blocks the process meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from onetray.config import Limits
from onetray.domain.errors import InvalidInput, TooLarge

LIMIT = "x-onetray-limit"
"""In a schema, names one of the engine's limits. The OpenAPI description of a server has its value instead."""
LARGE = 65_536
"""Bytes. Pydantic checks a smaller body fast, whatever it contains."""
MAX_UNKNOWN = 100
"""Unknown fields of one object."""
BATCHES = 10
"""Objects of one body, as a multiple of the limit of a batch: the flows of a batch contain tasks."""
ANY_LIST = "batch"
"""The limit of a list whose schema has none."""


@dataclass
class _Part:
    """The lists and objects that a schema allows at one position."""

    limit: int | str | None = None
    items: _Part | None = None
    """The items of a list, or of an object with arbitrary names."""
    fields: dict[str, _Part | None] = field(default_factory=dict)


class Sizes:
    """The size limits of one body type."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._defs = schema.get("$defs", {})
        self._part = self._part_of(schema)

    def check(self, raw: bytes, limits: Limits) -> None:
        """Raises InvalidInput or TooLarge if the body exceeds a limit."""
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return  # Pydantic reports it.
        limit = BATCHES * limits.batch
        for number, _ in enumerate(_objects(value, self._part, "body", limits), 1):
            if number > limit:
                raise TooLarge(f"a body has at most {limit:,} objects: send it in parts", field="body", limit=limit)

    def _part_of(self, schema: Any) -> _Part | None:
        """None if the schema allows anything, or neither lists nor objects."""
        options = list(self._options(schema))
        containers = [option for option in options if option.get("type") in ("array", "object")]
        if not containers or {} in options:
            return None
        part = _Part()
        for container in containers:
            limit = container.get(LIMIT, schema.get(LIMIT))
            inner = container.get("items") if container["type"] == "array" else container.get("additionalProperties")
            if inner is True:
                return None
            if inner:
                part.limit = limit or container.get("maxItems", ANY_LIST)
                part.items = self._part_of(inner)
            part.fields |= {name: self._part_of(field) for name, field in container.get("properties", {}).items()}
        return part

    def _options(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in schema:
            schema = self._defs[schema["$ref"].rpartition("/")[2]]
        inner = schema.get("anyOf", schema.get("oneOf"))
        if inner is None:
            # A schema that only has a description allows anything.
            yield schema if "type" in schema or "enum" in schema or "const" in schema else {}
            return
        for option in inner:
            yield from self._options(option)


def _objects(value: Any, part: _Part | None, at: str, limits: Limits) -> Iterator[None]:
    """Check lists and objects recursively. Yields once per object."""
    if part is None or not isinstance(value, list | dict):
        return
    if isinstance(value, dict):
        yield
    if part.limit is not None and not part.fields:
        _check_length(len(value), part.limit, at, limits)
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, part.items, at, limits)
    elif part.fields:
        unknown = len(value) - len(value.keys() & part.fields.keys())
        if unknown > MAX_UNKNOWN:
            raise InvalidInput(f"{at} has {unknown:,} unknown fields: leave them out", field=at)
        for name in part.fields.keys() & value.keys():
            yield from _objects(value[name], part.fields[name], f"{at}.{name}", limits)
    else:
        for item in value.values():
            yield from _objects(item, part.items, at, limits)


def _check_length(number: int, limit: int | str, at: str, limits: Limits) -> None:
    most = limit if isinstance(limit, int) else getattr(limits, limit)
    if number > most:
        error = InvalidInput if isinstance(limit, int) else TooLarge
        raise error(f"{at} has at most {most:,} items, not {number:,}: send it in parts", field=at, limit=most)
