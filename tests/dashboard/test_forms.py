"""Forms drawn from JSON Schemas: which inputs they have, and that a value comes back as it was."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from onetray.dashboard.form_fields import MAX_FIELDS
from onetray.dashboard.form_inputs import Field
from onetray.dashboard.forms import WHOLE, BadForm, Drawn, SchemaForm
from onetray.dashboard.view import Values
from tests.support.cases import each_case

# What browsers can send: no NUL, no lone surrogates. Line breaks are tested apart.
LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
WHOLES = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes().map(lambda at: f"{at.replace(microsecond=0).isoformat()}Z")
MIXED: list[Any] = ["a", 1, 1.5, True, "1", {"x": [1]}]
SCALARS: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, LINE),
    "long": ({"type": "string", "maxLength": 5_000}, LINE.map(lambda t: f"{t}\n{t}")),
    "integer": ({"type": "integer", "minimum": -(2**63)}, WHOLES),
    "number": ({"type": "number"}, NUMBERS | WHOLES),
    "enum": ({"enum": [*MIXED, None]}, st.sampled_from(MIXED)),
    "date": ({"type": "string", "format": "date"}, st.dates().map(str)),
    "time": ({"type": "string", "format": "date-time"}, TIMES),
    "maybe": ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, LINE),
    "json": ({"type": "object"}, st.dictionaries(LINE, st.none() | WHOLES | LINE, max_size=3)),
    "titled": ({"oneOf": [{"const": 1, "title": "One"}, {"const": 2, "title": "Two"}]}, st.sampled_from([1, 2])),
}  # fmt: skip
REQUIRED_ONLY: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "flag": ({"type": "boolean"}, st.booleans()),
    "texts": ({"type": "array", "items": {"type": "string"}}, st.lists(LINE, max_size=4)),
    "wholes": ({"type": "array", "items": {"type": "integer"}}, st.lists(WHOLES, max_size=4)),
    "numbers": ({"type": "array", "items": {"type": "number"}}, st.lists(NUMBERS, max_size=4)),
    "flags": ({"type": "array", "items": {"type": "boolean"}}, st.lists(st.booleans(), max_size=4)),
    "choices": ({"type": "array", "items": {"enum": ["x", 3]}}, st.lists(st.sampled_from(["x", 3]), max_size=4)),
    "times": ({"type": "array", "items": {"type": "string", "format": "date-time"}}, st.lists(TIMES, max_size=3)),
    "boxes": (
        {"type": "array", "uniqueItems": True, "items": {"enum": ["x", "y", "z"]}},
        st.sets(st.sampled_from(["x", "y", "z"])).map(sorted),
    ),
    "fixed": ({"const": {"v": 1}}, st.just({"v": 1})),
}  # fmt: skip
ALL = {**SCALARS, **REQUIRED_ONLY}


@st.composite
def cases(draw: st.DrawFn, depth: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """An object's schema, and a value of it."""
    names = draw(st.lists(st.sampled_from(["a", "b/c", "d~e", "f g", "", "ü", "<b>", "v"]), max_size=5, unique=True))
    properties, required, value = {}, [], {}
    for name in names:
        if depth == 0 and draw(st.integers(0, 4)) == 0:
            schema, of_it = draw(cases(depth=1))
            required.append(name)
        else:
            schema, strategy = ALL[draw(st.sampled_from(sorted(ALL)))]
            of_it = draw(strategy)
            if schema not in [s for s, _ in SCALARS.values()] or draw(st.booleans()):
                required.append(name)
            elif draw(st.booleans()):
                of_it = ...
        properties[name] = schema
        if of_it is not ...:
            value[name] = of_it
    return {"type": "object", "properties": properties, "required": required}, value


def sent(pairs: list[tuple[str, str]]) -> Values:
    """A form as a browser sends it."""
    return Values(urlencode([(name, text.replace("\n", "\r\n")) for name, text in pairs]))


def by_name(drawn: Drawn) -> dict[str, Drawn]:
    return {drawn.field.name: drawn, **{name: d for each in drawn.fields for name, d in by_name(each).items()}}


@given(cases())
def test_what_is_typed_for_a_value_is_that_value(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, value = case
    form = SchemaForm(schema)
    pairs = form.posts(value)
    assert pairs is not None
    read = form.value(sent(pairs))
    if value or form.has_fields:
        assert json.dumps(read, sort_keys=True) == json.dumps(value, sort_keys=True)
        assert not list(Draft202012Validator(schema).iter_errors(read))
    # The form that is drawn again shows what was typed.
    again = by_name(form.drawn(sent(pairs)))
    for name, text in pairs:
        assert text in again[name].texts


@given(cases())
def test_a_value_that_is_the_default_is_what_an_untouched_form_sends(case: tuple[dict[str, Any], Any]) -> None:
    schema, value = case
    form = SchemaForm({**schema, "default": value})
    untouched = [(d.field.name, text) for d in by_name(form.drawn()).values() for text in d.texts]
    if form.has_fields:
        read = form.value(sent(untouched))
        assert {key: read.get(key) for key in value} == value


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "enum", "const", "anyOf", "oneOf", "$ref", "default", "title",
                         "required", "minimum", "exclusiveMaximum", "maxLength", "format", "pattern", "description",
                         "$defs", "a"]) , inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


@given(
    JSONS, st.lists(st.tuples(st.sampled_from(["v", "v/a", WHOLE, "v/properties"]), st.text(max_size=8)), max_size=4)
)
def test_no_schema_and_no_form_breaks_it(schema: Any, pairs: list[tuple[str, str]]) -> None:
    form = SchemaForm(schema)
    assert form.drawn().field is form.root
    posted = Values(urlencode(pairs, errors="replace"))
    errors: dict[str, str] = {}
    try:
        form.value(posted)
    except BadForm as bad:
        errors = bad.errors
    assert form.drawn(posted, errors).field is form.root


def field_of(schema: Any, name: str = "a") -> Field:
    root = SchemaForm({"type": "object", "properties": {name: schema}, "required": [name]}).root
    return root.fields[0]


@each_case(
    ("schema", "kind", "attributes"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 9}, "text", {"minlength": "2", "maxlength": "9"}),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, "text", {"pattern": "(?:[a-z]{2})", "title": "^[a-z]{2}$"}),
        ({"type": "string", "pattern": "ab"}, "text", {"pattern": ".*(?:ab).*", "title": "ab"}),
        # Browsers would take them for something else, or for ever.
        ({"type": "string", "pattern": "^(a+)+$"}, "text", {}),
        ({"type": "string", "pattern": "\\w+"}, "text", {}),
        ({"type": "string", "pattern": "[a-z_-]"}, "text", {}),
        ({"type": "string", "pattern": "a\\$"}, "text", {}),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "integer", {"min": "1", "max": "5", "step": "1"}),
        ({"type": "integer", "exclusiveMinimum": 1.5}, "integer", {"min": "2", "step": "1"}),
        ({"type": "integer", "exclusiveMaximum": 5}, "integer", {"max": "4", "step": "1"}),
        ({"type": "number", "minimum": 0.5}, "number", {"min": "0.5", "step": "any"}),
        ({"type": "boolean"}, "flag", {}),
        ({"type": ["boolean", "null"]}, "choice", {}),
        ({"enum": ["a", "b"]}, "choice", {}),
        ({"enum": list(range(1_000))}, "json", {}),
        ({"const": 1}, "fixed", {}),
        ({"type": "string", "format": "date"}, "text", {}),
        ({"type": "string", "format": "date-time"}, "moment", {"step": "1"}),
        ({"type": "string", "default": 5}, "json", {}),
        ({"type": "string", "default": "a\nb"}, "long", {}),
        ({"type": "array", "items": {"type": "string"}, "default": ["a\nb"]}, "json", {}),
        ({"type": "array", "items": {"type": "object", "properties": {"a": {}}}}, "json", {}),
        ({"type": "array"}, "json", {}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "json", {}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "json", {}),
        (True, "json", {}),
        ({"$ref": "#/properties/a"}, "json", {}),
        ({"$ref": "https://example.com/x"}, "json", {}),
    ],
)  # fmt: skip
def test_each_schema_has_its_input(schema: Any, kind: str, attributes: dict[str, str]) -> None:
    found = field_of(schema)
    assert (found.kind, dict(found.attributes)) == (kind, attributes)


def test_objects_are_drawn_one_level_deep() -> None:
    leaf = {"type": "object", "properties": {"x": {"type": "string"}}}
    two = {"type": "object", "properties": {"inner": {"type": "object", "properties": {"deep": leaf}}}}
    root = SchemaForm(two).root
    assert [f.kind for f in (root, root.fields[0], root.fields[0].fields[0])] == ["group", "group", "json"]


def test_references_are_followed_within_the_schema() -> None:
    schema = {
        "properties": {"size": {"$ref": "#/$defs/Size", "default": "s", "title": "How large"}},
        "$defs": {"Size": {"enum": ["s", "m"], "title": "Size"}},
    }
    found = SchemaForm(schema).root.fields[0]
    assert (found.kind, found.label, found.default) == ("choice", "How large", "s")


def test_a_recursive_schema_is_drawn_and_its_depth_is_json() -> None:
    node = {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#"}}}
    root = SchemaForm(node).root
    assert [f.kind for f in root.fields] == ["text", "group"]
    assert [f.kind for f in root.fields[1].fields] == ["text", "json"]


def test_hostile_schemas_come_to_an_end() -> None:
    deep: Any = {"type": "string"}
    for _ in range(900):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(50_000)}}
    split = {
        "properties": {f"p{i}": {"properties": {f"q{j}": {} for j in range(MAX_FIELDS)}} for i in range(MAX_FIELDS)}
    }
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    regex = {"properties": {"a": {"type": "string", "pattern": "(" * 90 + "a*" * 20 + ")*" * 50}}}
    near = {"properties": {"a": {"type": "string", "pattern": "a" * 199 + "\\"}}}
    for schema in (deep, wide, split, circle, regex, near):
        form = SchemaForm(schema)
        with pytest.raises(BadForm):
            form.value(sent([(WHOLE, "{")]))
    assert not SchemaForm(wide).has_fields
    assert not SchemaForm(split).has_fields
    assert not SchemaForm(circle).has_fields


@each_case(
    ("schema", "typed", "says"),
    [
        ({"type": "integer"}, "1.5", "is not a whole number"),
        ({"type": "integer"}, "", "fill this in"),
        ({"type": "integer"}, "\u0661", "is not a whole number"),
        ({"type": "number"}, "nan", "is not a number"),
        ({"type": "number"}, "1e999", "too large"),
        ({"type": "string"}, "", "fill this in"),
        ({"enum": ["a"]}, '"b"', "none of the choices"),
        ({"enum": ["a"]}, "", "fill this in"),
        ({"type": "array", "items": {"type": "integer"}}, "1\nx", "line 2: 'x' is not a whole number"),
        ({"type": "object"}, "{", "this is not JSON"),
    ],
)
def test_what_is_not_of_the_type_is_said_at_its_field(schema: Any, typed: str, says: str) -> None:
    form = SchemaForm({"properties": {"a": schema}, "required": ["a"]})
    posted = sent([("v/a", typed)])
    with pytest.raises(BadForm) as bad:
        form.value(posted)
    assert says in bad.value.errors["/a"]
    drawn = by_name(form.drawn(posted, bad.value.errors))["v/a"]
    assert (drawn.text, drawn.error) == (typed, bad.value.errors["/a"])


def test_optional_fields_that_are_empty_are_left_out() -> None:
    properties = {name: schema for name, (schema, _) in ALL.items()}
    group = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "boolean", "default": False}}}
    form = SchemaForm({"properties": {**properties, "group": group}})
    empty = [(name, "") for name in by_name(form.drawn()) if name != "v"]
    assert form.value(sent(empty)) == {}


def test_a_default_that_was_removed_is_not_sent() -> None:
    form = SchemaForm({"properties": {
        "text": {"type": "string", "default": "x"},
        "list": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
        "boxes": {"type": "array", "uniqueItems": True, "items": {"enum": ["x"]}, "default": ["x"]},
    }})  # fmt: skip
    assert form.value(sent([("v/text", ""), ("v/list", "")])) == {"text": "", "list": [], "boxes": []}


def test_the_whole_as_json_wins() -> None:
    form = SchemaForm({"properties": {"a": {"type": "string"}}})
    assert form.value(sent([("v/a", "x"), (WHOLE, '{"a": "y", "b": 1}')])) == {"a": "y", "b": 1}


def test_a_time_of_a_browser_is_in_utc() -> None:
    form = SchemaForm(
        {"properties": {"at": {"type": "string", "format": "date-time", "default": "2026-01-01T12:00:00+02:00"}}}
    )
    assert by_name(form.drawn())["v/at"].text == "2026-01-01T10:00:00"
    assert form.value(sent([("v/at", "2026-01-01T10:00")])) == {"at": "2026-01-01T10:00:00Z"}
    assert form.value(sent([("v/at", "2026-01-01T10:00:00+02:00")])) == {"at": "2026-01-01T10:00:00+02:00"}


def test_an_error_deep_in_a_value_is_shown_at_its_field() -> None:
    form = SchemaForm({"properties": {"a": {"type": "array", "items": {"type": "string"}}, "b": {"type": "string"}}})
    drawn = by_name(form.drawn(None, {"/a/3/x": "bad", "/unknown": "odd"}))
    assert (drawn["v/a"].error, drawn["v/b"].error, drawn["v"].error) == ("bad", None, "odd")
