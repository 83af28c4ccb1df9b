"""JSON Schemas of responses, derived from the value classes.

Owns the mapping from a class to its schema, which describes what json_answers.to_json writes.
"""

from __future__ import annotations

import types
from collections.abc import Container, Iterator
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from onetray.http.json_answers import shown_fields

SCHEMA_PREFIX = "#/components/schemas/"
_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, Any: {}, object: {},
}  # fmt: skip
TIME = {"type": "string", "format": "date-time"}


def ref(kind: type | str) -> dict[str, Any]:
    return {"$ref": SCHEMA_PREFIX + (kind if isinstance(kind, str) else kind.__name__)}


def schema_of(kind: type, /, without: tuple[str, ...] = (), **more: dict[str, Any]) -> dict[str, Any]:
    """The schema of a dataclass or named tuple, with additional fields `more` and without those of `without`."""
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
    """An object in which all of these fields are required."""
    schema: dict[str, Any] = {"type": "object", "properties": fields, "required": list(fields)}
    return {**({"title": title} if title else {}), **({"description": about} if about else {}), **schema}


def of_type(hint: Any) -> dict[str, Any]:
    """The schema of a type annotation."""
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return either(*(of_type(arg) for arg in args))
    if origin in (list, tuple, set, frozenset):
        return {"type": "array", "items": of_type(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": of_type(args[1])}
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return ref(hint)
    raise TypeError(f"no schema is known for {hint!r}: add it to of_type")


def schema_like(example: Any, optional: Container[str] = ()) -> dict[str, Any]:
    """The schema of JSON such as this. Fields named in `optional` may be missing; null stands for any value."""
    if isinstance(example, dict):
        fields = {name: schema_like(value, optional) for name, value in example.items()}
        return {**record(fields), "required": [name for name in fields if name not in optional]}
    if isinstance(example, list | tuple):
        return {"type": "array", "items": schema_like(example[0], optional) if example else {}}
    return {} if example is None else dict(_SCALARS[type(example)])


def either(*schemas: dict[str, Any]) -> dict[str, Any]:
    """A union. Plain types become one list of types."""
    if {} in schemas:
        return {}
    if all(set(s) == {"type"} for s in schemas):
        return {"type": [s["type"] for s in schemas]}
    return {"anyOf": list(schemas)}


def parts(kind: type) -> Iterator[type]:
    """The dataclasses and named tuples in a class's fields."""
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and (is_dataclass(part) or hasattr(part, "_fields")):
                yield part


def _time(hint: Any) -> dict[str, Any]:
    return either(TIME, _SCALARS[type(None)]) if type(None) in get_args(hint) else dict(TIME)


def _about(kind: type) -> str:
    summary = (kind.__doc__ or "").strip().split("\n")[0]
    return "" if summary.startswith(f"{kind.__name__}(") else summary
