"""An input of a form, and the value of what is typed into it.

Nothing here checks a value against its schema: the engine does that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

ROOT = "v"
"""The beginning of the names of all inputs."""
TEXT, LONG, MOMENT, NUMBER, INTEGER, FLAG, CHOICE, LINES, BOXES, FIXED, JSON, GROUP = KINDS = (
    "text", "long", "moment", "number", "integer", "flag", "choice", "lines", "boxes", "fixed", "json", "group",
)  # fmt: skip
ABSENT: Any = object()
"""The value of an optional field that was left empty."""
_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d{1,300}\.?\d{0,300}|\.\d{1,300})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?P<seconds>:\d\d(?:\.\d{1,9})?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """A value to choose."""

    text: str
    """The value as JSON, which the form sends."""
    label: str


@dataclass(frozen=True, slots=True)
class Field:
    """An input of a form."""

    pointer: str
    """Where its value is, as a JSON pointer."""
    label: str
    kind: str
    help: str = ""
    is_required: bool = False
    is_nullable: bool = False
    default: Any = ABSENT
    type: str = "text"
    """The type of an <input>."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    fields: tuple[Field, ...] = ()
    """Of a group."""
    item: Field | None = None
    """Of a list: how each item is read."""

    @property
    def name(self) -> str:
        return ROOT + self.pointer

    @property
    def key(self) -> str:
        """The name of the property that it sets."""
        return self.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def typed_value(found: Field, texts: list[str]) -> Any:
    """The value of what was typed into a field; ABSENT for none. Raises ValueError with what is wrong."""
    text = texts[-1] if texts else ""
    match found.kind:
        case "fixed":
            return found.default
        case "flag":
            return text == "true"
        case "boxes":
            chosen = [_chosen(found, each) for each in texts if each]
            return ABSENT if not chosen and not found.is_required and found.default is ABSENT else chosen
        case "lines":
            return _items(found, text)
    if not (text if found.kind in (TEXT, LONG) else text.strip()):
        return _empty(found)
    return _one(found, text)


def _empty(found: Field) -> Any:
    is_text = found.kind in (TEXT, LONG) and found.type == "text"
    if is_text and isinstance(found.default, str) and not found.is_nullable:
        # Somebody has removed the default.
        return ""
    if not found.is_required:
        return ABSENT
    if found.is_nullable:
        return None
    raise ValueError("fill this in")


def _one(found: Field, text: str) -> Any:
    match found.kind:
        case "integer":
            return _integer(text.strip())
        case "number":
            return _number(text.strip())
        case "choice":
            return _chosen(found, text)
        case "moment":
            return _moment(text.strip())
        case "json":
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"this is not JSON: {error}") from None
    return text


def _items(found: Field, text: str) -> Any:
    assert found.item is not None
    lines = [line for line in text.split("\n") if line]
    if not lines and not found.is_required and found.default is ABSENT:
        return ABSENT
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(_one(found.item, _option_text(found.item, line)))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


def _option_text(item: Field, line: str) -> str:
    """What a line stands for: in a list of choices, a label or a value."""
    return next((o.text for o in item.options if line.strip() in (o.label, o.text)), line)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    if _INTEGER.fullmatch(text):
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is too large a number")
    return value


def _chosen(found: Field, text: str) -> Any:
    if text not in {option.text for option in found.options}:
        raise ValueError(f"{text[:40]!r} is none of the choices")
    return json.loads(text)


def _moment(text: str) -> str:
    """A time with its zone: browsers send none, and the form says UTC."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return text
    return f"{text}{'' if match['seconds'] else ':00'}Z"


def texts_of(found: Field, value: Any) -> list[str] | None:
    """What is typed into a field for a value; None if it cannot be."""
    match found.kind:
        case "json":
            return [json.dumps(value, indent=2, ensure_ascii=False)]
        case "fixed":
            return [] if as_option(value) == as_option(found.default) else None
        case "flag":
            return ({True: ["true"], False: []}).get(value) if isinstance(value, bool) else None
    if value is None:
        return [""] if found.is_nullable else None
    if found.kind == BOXES:
        return _boxes_of(found, value)
    if found.kind == LINES:
        return _lines_of(found, value)
    text = _text_of(found, value)
    return None if text is None else [text]


def _text_of(found: Field, value: Any) -> str | None:
    match found.kind:
        case "integer" | "number":
            is_right = is_whole(value) if found.kind == INTEGER else is_number(value)
            return as_option(value) if is_right else None
        case "choice":
            text = as_option(value)
            return text if text in {option.text for option in found.options} else None
        case "moment":
            return _local_moment(value)
    if not isinstance(value, str) or "\r" in value or (found.kind != LONG and "\n" in value):
        return None
    return value


def _boxes_of(found: Field, value: Any) -> list[str] | None:
    if not isinstance(value, list):
        return None
    texts = [as_option(each) for each in value]
    in_order = [option.text for option in found.options if option.text in texts]
    return texts if texts == in_order else None


def _lines_of(found: Field, value: Any) -> list[str] | None:
    assert found.item is not None
    if not isinstance(value, list):
        return None
    lines = [_line_of(found.item, each) for each in value]
    if any(not line or "\n" in line for line in lines):
        return None
    return ["\n".join(line for line in lines if line)]


def _line_of(item: Field, value: Any) -> str | None:
    if item.kind == MOMENT:
        return value if isinstance(value, str) and not _MOMENT.fullmatch(value) and value == value.strip() else None
    text = _text_of(item, value)
    if item.kind != CHOICE or text is None:
        return text
    label = next(option.label for option in item.options if option.text == text)
    return label if _option_text(item, label) == text else None


def _local_moment(value: Any) -> str | None:
    """A time as browsers take it: in UTC, without the zone."""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    if at.tzinfo is None or at.microsecond:
        return None
    try:
        return at.astimezone(UTC).replace(tzinfo=None).isoformat()
    except OverflowError:
        return None


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def as_option(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
