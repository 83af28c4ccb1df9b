"""How much may stand in a large body: the items of its lists, its objects, the fields that nobody knows.

Owns the look at a body before pydantic reads it. That one looks at every item, and nothing else in the process runs
meanwhile: what is too much is refused before, as the schema of the body says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from onetray.config import Limits
from onetray.domain.errors import InvalidInput, TooLarge

LIMIT = "x-onetray-limit"
"""Stands in a schema for a limit of the engine's, by its name: the description of a server fills its own in."""
LARGE = 65_536
"""Bytes of a body that is looked at first. A smaller one is read in no time, whatever stands in it."""
MAX_UNKNOWN = 100
"""Fields of one object that its schema does not have."""
BATCHES = 10
"""So many times the limit of a batch are the objects of one body: flows of a batch bring tasks of their own."""
ANY_LIST = "batch"
"""The limit of a list whose schema has none."""


@dataclass
class _Part:
    """What a schema says of the lists and objects that may stand in one place."""

    most: int | str | None = None
    items: _Part | None = None
    """Of a list, or of an object whose names are free."""
    fields: dict[str, _Part | None] = field(default_factory=dict)


class Sizes:
    """The sizes that one kind of body may have."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._defs = schema.get("$defs", {})
        self._part = self._part_of(schema)

    def check(self, raw: bytes, limits: Limits) -> None:
        """InvalidInput or TooLarge when there is too much of something."""
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return  # Told by whoever reads it.
        most = BATCHES * limits.batch
        for number, _ in enumerate(_objects(value, self._part, "body", limits), 1):
            if number > most:
                raise TooLarge(f"a body has at most {most:,} objects: send it in parts", field="body", limit=most)

    def _part_of(self, schema: Any) -> _Part | None:
        """None where anything may stand, or neither a list nor an object."""
        options = list(self._options(schema))
        found = [one for one in options if one.get("type") in ("array", "object")]
        if not found or {} in options:
            return None
        part = _Part()
        for one in found:
            limit = one.get(LIMIT, schema.get(LIMIT))
            inner = one.get("items") if one["type"] == "array" else one.get("additionalProperties")
            if inner is True:
                return None
            if inner:
                part.most = limit or one.get("maxItems", ANY_LIST)
                part.items = self._part_of(inner)
            part.fields |= {name: self._part_of(of) for name, of in one.get("properties", {}).items()}
        return part

    def _options(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in schema:
            schema = self._defs[schema["$ref"].rpartition("/")[2]]
        inner = schema.get("anyOf", schema.get("oneOf"))
        if inner is None:
            # What only has words about itself allows anything.
            yield schema if "type" in schema or "enum" in schema or "const" in schema else {}
            return
        for one in inner:
            yield from self._options(one)


def _objects(value: Any, part: _Part | None, at: str, limits: Limits) -> Iterator[None]:
    """All objects that a schema speaks of, each checked."""
    if part is None or not isinstance(value, list | dict):
        return
    if isinstance(value, dict):
        yield
    if part.most is not None and not part.fields:
        _must_be_few(len(value), part.most, at, limits)
    if isinstance(value, list):
        for one in value:
            yield from _objects(one, part.items, at, limits)
    elif part.fields:
        unknown = len(value) - len(value.keys() & part.fields.keys())
        if unknown > MAX_UNKNOWN:
            raise InvalidInput(f"{at}: {unknown:,} of its fields are not known: leave them out", field=at)
        for name in part.fields.keys() & value.keys():
            yield from _objects(value[name], part.fields[name], f"{at}.{name}", limits)
    else:
        for one in value.values():
            yield from _objects(one, part.items, at, limits)


def _must_be_few(number: int, limit: int | str, at: str, limits: Limits) -> None:
    most = limit if isinstance(limit, int) else getattr(limits, limit)
    if number > most:
        refusal = InvalidInput if isinstance(limit, int) else TooLarge
        raise refusal(f"{at} has at most {most:,} items, not {number:,}: send it in parts", field=at, limit=most)
