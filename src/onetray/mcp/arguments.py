"""Arguments of tools: pydantic models, their JSON Schemas, and errors that name the field and what to do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from onetray.domain.errors import InvalidInput, short_repr

MAX_SHOWN = 5
"""Errors of one call that are listed."""
A = TypeVar("A", bound="Arguments")


class Arguments(BaseModel):
    """The arguments of one tool. No others are accepted, and no types are converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class NoArguments(Arguments):
    """A tool that takes none."""


def parse_arguments(model: type[A], given: object) -> A:
    """The checked arguments. Raises InvalidInput, which names each wrong field and what to send instead."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise InvalidInput(f"arguments must be an object, not {short_repr(given)}", field="arguments")
    names = _names(model)
    # Thousands of unknown fields would be thousands of errors.
    if unknown := [name for name in given if name not in names]:
        known = f"use {', '.join(names)}" if names else "this tool takes none"
        raise InvalidInput(f"there is no argument {str(unknown[0])[:50]!r}: {known}", field=str(unknown[0])[:50])
    try:
        return model.model_validate(given)
    except ValidationError as e:
        found = e.errors(include_url=False, include_context=False, include_input=False)
        told = [f"{_place(error['loc'])}: {_advice(error)}" for error in found[:MAX_SHOWN]]
        raise InvalidInput("; ".join(told), field=_place(found[0]["loc"])) from None


@lru_cache
def _names(model: type[Arguments]) -> dict[str, None]:
    """The names of the arguments as callers know them, in order."""
    return dict.fromkeys(field.alias or name for name, field in model.model_fields.items())


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "arguments"


def _advice(error: Any) -> str:
    return "it is required: add it" if error["type"] == "missing" else error["msg"].removeprefix("Value error, ")


@lru_cache
def input_schema(model: type[Arguments]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments, without what a model need not read."""
    schema = _without_titles(model.model_json_schema())
    schema.pop("description", None)
    return {"type": "object", "properties": {}, **schema}


def _without_titles(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_titles(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {name: value for name, value in part.items() if not (name == "title" and isinstance(value, str))}
    # An optional field need not be sent: null, which it may be, says the same and only costs attention.
    if kept.get("default", kept) is None and isinstance(kept.get("anyOf"), list):
        others = [each for each in kept["anyOf"] if each != {"type": "null"}]
        if len(others) == 1:
            kept = {**others[0], **{name: value for name, value in kept.items() if name not in ("anyOf", "default")}}
    return {
        name: _properties(value) if name == "properties" else _without_titles(value) for name, value in kept.items()
    }


def _properties(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _without_titles(schema) for name, schema in fields.items()}
