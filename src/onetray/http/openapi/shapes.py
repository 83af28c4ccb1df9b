"""The shape of answers as JSON Schema, read from the values themselves.

Owns the way from a class to its schema. It follows wire.plain: what that writes, this describes.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from onetray.http.json_answers import shown_fields

PLACE = "#/components/schemas/"
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, object: {},
}  # fmt: skip
TIME = {"type": "string", "format": "date-time"}


def ref(kind: type | str) -> dict[str, Any]:
    return {"$ref": PLACE + (kind if isinstance(kind, str) else kind.__name__)}


def schema_of(kind: type, /, without: tuple[str, ...] = (), **more: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass or a named tuple, with fields that the answer has besides, and without some."""
    hints = get_type_hints(kind)
    fields = {**more}
    for name, is_time in shown_fields(kind):
        if name in without:
            continue
        if name == "actions":
            fields[name] = {"type": "array", "items": {"type": "string"}}
        else:
            fields[name] = _time(hints[name]) if is_time else of_type(hints[name])
    return record(fields, title=kind.__name__, about=_about(kind))


def record(fields: dict[str, dict[str, Any]], *, title: str = "", about: str = "") -> dict[str, Any]:
    """An object with these fields, all of them there."""
    found: dict[str, Any] = {"type": "object", "properties": fields, "required": list(fields)}
    return {**({"title": title} if title else {}), **({"description": about} if about else {}), **found}


def of_type(hint: Any) -> dict[str, Any]:
    """The schema of an annotation."""
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return either(*(of_type(arg) for arg in args))
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": of_type(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(args[1])}
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return ref(hint)
    raise TypeError(f"no schema is known for {hint!r}: name it here")


def either(*schemas: dict[str, Any]) -> dict[str, Any]:
    """One of these. Plain types are one list."""
    if {} in schemas:
        return {}
    if all(set(s) == {"type"} for s in schemas):
        return {"type": [s["type"] for s in schemas]}
    return {"anyOf": list(schemas)}


def parts(kind: type) -> Iterator[type]:
    """The classes that a class is made of."""
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and (is_dataclass(part) or hasattr(part, "_fields")):
                yield part


def _time(hint: Any) -> dict[str, Any]:
    return either(TIME, _PLAIN[type(None)]) if type(None) in get_args(hint) else dict(TIME)


def _about(kind: type) -> str:
    said = (kind.__doc__ or "").strip().split("\n")[0]
    return "" if said.startswith(f"{kind.__name__}(") else said
