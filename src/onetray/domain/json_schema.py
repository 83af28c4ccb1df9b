"""Check JSON values against JSON Schemas that users provide, and fill in the defaults that a schema names.

Nothing is loaded from outside of a schema, and no expression of one takes long: see patterns.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from copy import deepcopy
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from onetray.domain.errors import InvalidInput
from onetray.domain.patterns import MAX_WORK, BadPattern, pattern_of

if TYPE_CHECKING:
    from jsonschema import ValidationError

MAX_ERRORS = 50
"""An error names up to this many parts of a value."""
MAX_HOPS = 100
"""References that refer to references are followed this far."""


def must_be_schema(schema: object, field: str) -> None:
    """Raises InvalidInput if it is not a JSON Schema."""
    # Imported here: it is slow, and few commands need it.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, dict):
        raise InvalidInput(f"{field} must be a JSON Schema, a dict", field=field)
    _bounded(schema, field)
    try:
        # With formats: a pattern that is no regular expression would fail at the first value.
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as e:
        raise InvalidInput(f"{field} is not a JSON Schema: {e.message}"[:300], field=field) from None


def check_value(schema: dict[str, Any], value: object, field: str, schema_field: str) -> None:
    """Raises InvalidInput if the value does not satisfy the schema; the message names the part that does not."""
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # With an empty registry it loads nothing from outside of the schema.
    validator = _validator()(_bounded(schema, schema_field), registry=Registry())
    _work.set([MAX_WORK])
    try:
        errors = list(islice(validator.iter_errors(value), MAX_ERRORS))
        error = best_match(errors)
    except _TooMuchWork:
        raise InvalidInput(
            f"{field} has too much text for the patterns of {schema_field}: make it shorter, or limit it by maxLength "
            "and maxItems",
            field=field,
        ) from None
    except Unresolvable as e:
        raise InvalidInput(f"{schema_field} has a reference outside of itself: {e}"[:300], field=schema_field) from None
    except RecursionError:
        raise InvalidInput(f"{schema_field} refers to itself endlessly", field=schema_field) from None
    if error is not None:
        at = "/".join(map(str, error.absolute_path))
        parts = [{"at": _place(each), "message": each.message[:300]} for each in errors]
        raise InvalidInput(f"{field}{'/' + at if at else ''}: {error.message}"[:300], field=field, parts=parts)


DATA = ("const", "default", "enum", "examples")
_work: ContextVar[list[int]] = ContextVar("work of patterns")
"""How much the patterns of this check may still cost."""


class _TooMuchWork(Exception):
    """The patterns of a schema would take too long for a value."""


def _bounded(schema: dict[str, Any], field: str) -> dict[str, Any]:
    """A copy of a schema without `$schema`, which would choose another validator.

    Raises InvalidInput for a pattern that may take long.
    """
    names: set[str] = set()
    try:
        copied: dict[str, Any] = _copied(schema, names)
    except BadPattern as e:
        problem = f"{field} is not a JSON Schema that can be checked: a pattern is refused, {e}; use a simpler one"
        raise InvalidInput(problem[:300], field=field) from None
    except RecursionError:
        raise InvalidInput(f"{field} is nested too deeply", field=field) from None
    if {"patternProperties", "unevaluatedProperties"} <= names:
        raise InvalidInput(f"{field} has patternProperties and unevaluatedProperties: use one of them", field=field)
    return copied


def _copied(part: Any, names: set[str]) -> Any:
    if isinstance(part, list):
        return [_copied(each, names) for each in part]
    if not isinstance(part, dict):
        return part
    names.update(part)
    patterns = part.get("patternProperties")
    for pattern in (part.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str):
            pattern_of(pattern)
    return {
        name: each if name in DATA else _copied(each, names)
        for name, each in part.items()
        if name != "$schema" or not isinstance(each, str)
    }


@cache
def _validator() -> Any:
    """A validator whose patterns take a bounded time."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import extend

    usual = Draft202012Validator.VALIDATORS["additionalProperties"]

    def pattern(validator: Any, wanted: str, value: Any, schema: Any) -> Iterator[ValidationError]:
        if isinstance(value, str) and not _is_in(wanted, value):
            yield ValidationError(f"{value!r} does not match {wanted!r}")

    def pattern_properties(
        validator: Any, wanted: dict[str, Any], value: Any, schema: Any
    ) -> Iterator[ValidationError]:
        for expression, part in wanted.items() if isinstance(value, dict) else ():
            for name, item in value.items():
                if _is_in(expression, name):
                    yield from validator.descend(item, part, path=name, schema_path=expression)

    def additional(validator: Any, wanted: Any, value: Any, schema: dict[str, Any]) -> Iterator[ValidationError]:
        patterns = schema.get("patternProperties")
        if not patterns:
            yield from usual(validator, wanted, value, schema)
            return
        for name, item in value.items() if isinstance(value, dict) else ():
            if name in schema.get("properties", {}) or any(_is_in(each, name) for each in patterns):
                continue
            if wanted is False:
                yield ValidationError(f"{name!r} is not expected", path=[name])
            else:
                yield from validator.descend(item, wanted, path=name)

    ours = {"pattern": pattern, "patternProperties": pattern_properties, "additionalProperties": additional}
    return extend(Draft202012Validator, ours)  # type: ignore[no-untyped-call]


def _is_in(expression: str, text: str) -> bool:
    found, left = pattern_of(expression), _work.get()
    left[0] -= found.work(text)
    if left[0] < 0:
        raise _TooMuchWork
    return found.is_in(text)


def _place(error: ValidationError) -> str:
    """The JSON pointer of what is wrong. That of a missing property is where it should be."""
    path, names = list(error.absolute_path), error.validator_value
    if error.validator == "required" and isinstance(names, list):
        path += [name for name in names if error.message.startswith(f"{name!r} ")][:1]
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def with_defaults(schema: dict[str, Any], value: Any, field: str) -> Any:
    """A copy of the value with the defaults of missing properties, at any depth.

    A union is followed only if one of its members is an object: what the value means is the handler's to decide.
    """
    try:
        return _filled(schema, value, schema)
    except RecursionError:
        raise InvalidInput(f"{field} is nested too deeply", field=field) from None


def _filled(schema: Any, value: Any, root: dict[str, Any]) -> Any:
    schema = _resolved(schema, root)
    if isinstance(value, list):
        return [_filled(schema.get("items"), item, root) for item in value]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties"), schema.get("additionalProperties")
    known = known if isinstance(known, dict) else {}
    filled = {name: _filled(known.get(name, others), item, root) for name, item in value.items()}
    for name, part in known.items():
        if name not in filled and isinstance(part, dict) and "default" in part:
            filled[name] = deepcopy(part["default"])
    return filled


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The schema that describes the value: behind references, and the only object of a union."""
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict):
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = _referred(schema["$ref"], root)
            continue
        members = next((schema[name] for name in ("anyOf", "oneOf", "allOf") if name in schema), None)
        if not isinstance(members, list):
            return schema
        objects = [part for part in members if isinstance(part, dict) and ("$ref" in part or "properties" in part)]
        schema = objects[0] if len(objects) == 1 else None
    return {}


def _referred(reference: str, root: dict[str, Any]) -> Any:
    part: Any = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
    return part
