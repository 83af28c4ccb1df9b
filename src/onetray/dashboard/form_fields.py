"""The inputs for a JSON Schema.

Owns which input a schema gets. What has none of its own is a text area for JSON: deeper objects, unions, anything that
is too large. No pattern of a schema is run here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onetray.dashboard.form_inputs import (
    ABSENT,
    BOXES,
    CHOICE,
    FIXED,
    FLAG,
    GROUP,
    INTEGER,
    JSON,
    LINES,
    LONG,
    MOMENT,
    NUMBER,
    TEXT,
    Field,
    Option,
    as_option,
    is_number,
    is_whole,
    texts_of,
)

MAX_FIELDS, MAX_OPTIONS, MAX_HOPS = 100, 200, 20
MAX_LABEL_CHARS, MAX_HELP_CHARS, MAX_PATTERN_CHARS, LONG_CHARS = 200, 1_000, 200, 200
_INPUT_TYPES = {"date": "date", "email": "email", "uri": "url"}
# Patterns that mean the same to a browser, and cannot take long: no nested repetition, no \w. Possessive, so that this
# check cannot take long either.
_CLASS = r"\[\^?(?:\\[ds]|[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9 .,:_@+%])++\]"
_ATOM = (
    rf"(?:{_CLASS}|\\[ds.+*?^$()\[\]{{}}|/\\]|[A-Za-z0-9 .,:;_@%#=<>~!'\"/-])(?:[*+?]|\{{\d{{1,4}}(?:,\d{{0,4}})?\}})?"
)
_PATTERN = re.compile(rf"\^?(?:{_ATOM}|\((?:\?:)?(?:{_ATOM}|\|)++\)\??)++\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SchemaPart:
    """A part of a schema, and where it stands."""

    schema: Any
    pointer: str
    label: str
    is_required: bool
    depth: int


def field_for(part: SchemaPart, root: Any) -> Field:
    schema, is_nullable = _without_null(_followed(part.schema, root), root)
    title = schema.get("title")
    plain = Field(
        part.pointer, title[:MAX_LABEL_CHARS] if isinstance(title, str) and title.strip() else part.label, JSON,
        _help(schema), part.is_required, is_nullable, schema.get("default", ABSENT),
    )  # fmt: skip
    found = _of_type(plain, schema, root, part.depth)
    # What its input cannot say, it must not lose.
    if found.default is not ABSENT and found.kind != GROUP and texts_of(found, found.default) is None:
        return replace(plain, kind=JSON)
    return found


def _help(schema: dict[str, Any]) -> str:
    text = schema.get("description")
    return text[:MAX_HELP_CHARS] if isinstance(text, str) else ""


def _followed(schema: Any, root: Any) -> dict[str, Any]:
    """The schema behind references within the root. What stands beside a reference, as a default, counts first."""
    beside: dict[str, Any] = {}
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict):
            return beside
        beside = {**schema, **beside}
        reference = beside.pop("$ref", None)
        if not isinstance(reference, str):
            return beside
        schema = _at(root, reference)
    return {}


def _at(root: Any, reference: str) -> Any:
    part = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) and name else part
    return part if reference.startswith("#") else None


def _without_null(schema: dict[str, Any], root: Any) -> tuple[dict[str, Any], bool]:
    """A schema that also allows null, without that."""
    types, union = schema.get("type"), schema.get("anyOf", schema.get("oneOf"))
    if isinstance(types, list) and len(types) == 2 and "null" in types:
        return {**schema, "type": next(t for t in types if t != "null")}, True
    if isinstance(union, list) and len(union) == 2 and "type" not in schema and {"type": "null"} in union:
        other = next((part for part in union if part != {"type": "null"}), None)
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        return {**_followed(other, root), **rest}, True
    return schema, False


def _of_type(plain: Field, schema: dict[str, Any], root: Any, depth: int) -> Field:
    if "const" in schema and plain.is_required and not plain.is_nullable:
        return replace(plain, kind=FIXED, default=schema["const"])
    options = _options(schema)
    if options is not None:
        return replace(plain, kind=CHOICE, options=options) if options else plain
    if not {"allOf", "anyOf", "oneOf", "not", "if"}.isdisjoint(schema) and depth:
        return plain
    match schema.get("type", "object" if "properties" in schema else None):
        case "string":
            return _text_field(plain, schema)
        case "integer":
            return replace(plain, kind=INTEGER, type="number", attributes={**_bounds(schema, True), "step": "1"})
        case "number":
            return replace(plain, kind=NUMBER, type="number", attributes={**_bounds(schema, False), "step": "any"})
        case "boolean":
            return _flag_field(plain)
        case "array":
            return _list_field(plain, schema, root)
        case "object":
            return _group_field(plain, schema, root, depth)
    return plain


def _options(schema: dict[str, Any]) -> tuple[Option, ...] | None:
    """The values to choose from; None if it is not about a choice, empty if there are too many."""
    values, titles = schema.get("enum"), {}
    if "const" in schema:
        values = [schema["const"]]
    members = schema.get("oneOf")
    if values is None and isinstance(members, list) and all(isinstance(m, dict) and "const" in m for m in members):
        values, titles = [m["const"] for m in members], {as_option(m["const"]): m.get("title") for m in members}
    if not isinstance(values, list):
        return None
    if not 0 < len(values) <= MAX_OPTIONS:
        return ()
    texts = dict.fromkeys(as_option(value) for value in values)
    return tuple(Option(text, _label(titles.get(text), text)) for text in texts)


def _label(title: object, text: str) -> str:
    if isinstance(title, str) and title.strip():
        return title[:MAX_LABEL_CHARS]
    value = json.loads(text)
    return (value if isinstance(value, str) and value else text)[:MAX_LABEL_CHARS]


def _text_field(plain: Field, schema: dict[str, Any]) -> Field:
    limits = {
        html: str(schema[name])
        for name, html in (("minLength", "minlength"), ("maxLength", "maxlength"))
        if is_whole(schema.get(name)) and schema[name] > 0
    }
    format_ = schema.get("format")
    if format_ == "date-time":
        return replace(plain, kind=MOMENT, type="datetime-local", attributes={"step": "1"})
    if is_whole(schema.get("maxLength")) and schema["maxLength"] > LONG_CHARS and "pattern" not in schema:
        return replace(plain, kind=LONG, attributes=limits)
    type_ = _INPUT_TYPES.get(format_, "text") if isinstance(format_, str) else "text"
    found = replace(plain, kind=TEXT, type=type_, attributes={} if type_ == "date" else limits | _pattern(schema))
    default = plain.default
    return replace(found, kind=LONG, attributes=limits) if isinstance(default, str) and "\n" in default else found


def _pattern(schema: dict[str, Any]) -> dict[str, str]:
    """The pattern for the browser, if it is plain. It matches anywhere in a text; that of HTML is for all of it."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS or not _PATTERN.fullmatch(pattern):
        return {}
    before, after = "" if pattern.startswith("^") else ".*", "" if pattern.endswith("$") else ".*"
    if pattern.endswith("\\$"):
        return {}
    return {"pattern": f"{before}(?:{pattern.removeprefix('^').removesuffix('$')}){after}", "title": pattern}


def _bounds(schema: dict[str, Any], is_integer: bool) -> dict[str, str]:
    """The lowest and the highest number, as far as HTML can say it."""
    bounds: dict[str, str] = {}
    for name, exclusive, html, step in (
        ("minimum", "exclusiveMinimum", "min", 1), ("maximum", "exclusiveMaximum", "max", -1),
    ):  # fmt: skip
        limit: Any = schema.get(name)
        if is_integer and is_number(schema.get(exclusive)):
            over = schema[exclusive]
            nearest = (math.floor(over) if step > 0 else math.ceil(over)) + step
            limit = nearest if not is_number(limit) else (max if step > 0 else min)(nearest, limit)
        if is_number(limit):
            bounds[html] = as_option((math.ceil(limit) if step > 0 else math.floor(limit)) if is_integer else limit)
    return bounds


def _flag_field(plain: Field) -> Field:
    if not plain.is_nullable and (plain.is_required or isinstance(plain.default, bool)):
        return replace(plain, kind=FLAG)
    return replace(plain, kind=CHOICE, options=(Option("true", "Yes"), Option("false", "No")))


def _list_field(plain: Field, schema: dict[str, Any], root: Any) -> Field:
    if "prefixItems" in schema or plain.is_nullable:
        return plain
    item = field_for(SchemaPart(schema.get("items"), f"{plain.pointer}/-", plain.label, True, 1), root)
    if item.kind == CHOICE and not item.is_nullable and schema.get("uniqueItems") is True:
        return replace(plain, kind=BOXES, options=item.options)
    if item.kind in (TEXT, MOMENT, NUMBER, INTEGER, CHOICE, FLAG) and not item.is_nullable:
        if item.kind == FLAG:
            item = replace(item, kind=CHOICE, options=(Option("true", "true"), Option("false", "false")))
        return replace(plain, kind=LINES, item=item, help=f"{plain.help} {_lines_help(item)}".strip())
    return plain


def _lines_help(item: Field) -> str:
    if item.kind == CHOICE:
        return f"One on each line: {', '.join(o.label for o in item.options[:20])}."
    return {
        INTEGER: "One whole number on each line.", NUMBER: "One number on each line.",
        MOMENT: "One time on each line, as 2026-12-31T23:59:00Z.",
    }.get(item.kind, "One on each line.")  # fmt: skip


def _group_field(plain: Field, schema: dict[str, Any], root: Any, depth: int) -> Field:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MAX_FIELDS or depth > 1 or plain.is_nullable:
        return plain
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    defaults = plain.default if isinstance(plain.default, dict) else {}
    if defaults.keys() - properties.keys():
        return plain
    parts = [
        SchemaPart(
            _with_default(part, defaults, name), f"{plain.pointer}/{_escaped(name)}", name or "(no name)",
            name in needed and plain.is_required, depth + 1,
        )
        for name, part in properties.items()
    ]  # fmt: skip
    fields = tuple(field_for(part, root) for part in parts)
    return replace(plain, kind=GROUP, fields=fields)


def _with_default(part: Any, defaults: dict[str, Any], name: str) -> Any:
    return {**part, "default": defaults[name]} if isinstance(part, dict) and name in defaults else part


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def all_fields(found: Field) -> Iterator[Field]:
    yield found
    for each in found.fields:
        yield from all_fields(each)
