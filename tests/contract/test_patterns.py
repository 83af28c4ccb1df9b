"""Regular expressions in the schemas of users: matched as `re` does, in bounded time, and refused if that cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.json_schema import check_value, must_be_schema
from onetray.domain.patterns import BadPattern, Pattern, pattern_of
from onetray.engine import Engine
from tests.support.cases import each_case

ENDLESS = "^(a+)+$"
AGAINST_IT = "a" * 60 + "b"
"""`re` would try 2 ** 60 ways."""
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
KNOWN = (
    "", "^$", "x*", "a|b|cd", "a{2,4}b", "^.{3}$", r"\bfoo\b", r"\Boo", r"[^a-c\d]x?", r"\Aab\Z", "(a*)*b", "a+?b",
    "(?:a|b|)c", r"^[a-z]+(-[a-z]+)*$", r"^(\d{1,3}\.){3}\d{1,3}$", r"\w+@\w+\.\w{2,}", r"[\s-]+$",
    r"\W\D\S", "((a|b)*c|d){2}", "^a*$",
    r"[^\n]$",
)  # fmt: skip


@given(st.sampled_from(KNOWN), st.text("abcdfox -.@1\n_é", max_size=12))
def test_a_pattern_is_in_a_text_as_re_finds_it(pattern: str, text: str) -> None:
    followed = Pattern(pattern)
    expected = re.search(pattern, text) is not None
    assert followed.is_in(text) is expected
    if followed.work(text) == 0:
        # Left to `re` by its form: it can be followed as well.
        assert Pattern(f"(?:{pattern})").is_in(text) is expected


@each_case(
    ("pattern", "says"),
    [
        ("(?=.*a)b", "a lookaround"),
        (r"(a)\1", "a backreference"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        ("a++", "a possessive repetition"),
        ("(" * 495 + ")" * 495, "nested too deeply"),
        ("(a|b){5000}", "more than 1,000 parts"),
        ("(((){1000}){1000}){1000}", "more than 1,000 parts"),
        ("a" * 1_001, "at most 1,000"),
        ("[", "not a regular expression"),
        ("a{99999999999999}", "not a regular expression"),
    ],
)
def test_what_cannot_be_bounded_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(says)):
        pattern_of(pattern)
    for schema in ({"properties": {"a": {"pattern": pattern}}}, {"items": [{"patternProperties": {pattern: {}}}]}):
        with pytest.raises(InvalidInput, match="form is not a JSON Schema that can be checked: a pattern is refused"):
            must_be_schema(schema, "form")


@each_case(
    ("schema", "value"),
    [
        ({"pattern": ENDLESS}, AGAINST_IT),
        ({"propertyNames": {"pattern": ENDLESS}}, {AGAINST_IT: 1}),
        ({"patternProperties": {ENDLESS: {}}, "additionalProperties": False}, {AGAINST_IT: 1}),
        ({"patternProperties": {ENDLESS: False}, "additionalProperties": {"type": "string"}}, {AGAINST_IT: 1}),
        # Another draft would bring a validator of its own.
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$schema": DRAFT_7, "pattern": ENDLESS}}}, AGAINST_IT),
    ],
)  # fmt: skip
def test_no_keyword_of_a_schema_takes_long(schema: dict[str, Any], value: Any) -> None:
    must_be_schema(schema, "form")
    with pytest.raises(InvalidInput, match="input"):
        check_value(schema, value, "input", "form")


def test_properties_that_match_a_pattern_are_checked_by_it() -> None:
    schema = {"properties": {"b": {}}, "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}
    check_value(schema, {"b": "any", "x1": 7}, "input", "form")
    with pytest.raises(InvalidInput) as refused:
        check_value(schema, {"x1": "7", "c": 1}, "input", "form")
    assert [part["at"] for part in refused.value.facts["parts"]] == ["/x1", "/c"]


def test_much_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidInput, match="too much text for the patterns of form"):
        check_value({"items": {"pattern": "(a|b)*c"}}, ["ab" * 10_000] * 50, "input", "form")
    check_value({"items": {"pattern": "^[a-z]{3,}$"}}, ["ab" * 10_000] * 50, "input", "form")


def test_two_keywords_that_need_re_are_not_used_together() -> None:
    with pytest.raises(InvalidInput, match="use one of them"):
        must_be_schema({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "form")


def test_an_approval_is_answered_whatever_its_pattern(engine: Engine) -> None:
    form = {"type": "object", "properties": {"name": {"type": "string", "pattern": ENDLESS}}}
    stage = StageSpec("publish", [TaskSpec("x")], approval=Approval(form=form))
    (id_,) = engine.submit_flow("news", [stage]).stages
    with pytest.raises(InvalidInput, match="does not match"):
        engine.approve_stage(id_, input={"name": AGAINST_IT})
    engine.approve_stage(id_, input={"name": "aaa"})
    with pytest.raises(InvalidInput, match="a lookaround"):
        engine.submit_flow("news", [StageSpec("p", [TaskSpec("x")], approval=Approval(form={"pattern": "(?!a)"}))])
