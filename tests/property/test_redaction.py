"""Redaction: whatever the payload is, what the paths name is nowhere in what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onetray.errors import InvalidInput
from onetray.model import Policy
from onetray.redaction import HIDDEN, Secrets, scrub, secrets_in, shown

WORDS = st.text(alphabet="abc\"'\\ \n/é%+", min_size=4, max_size=12).filter(lambda s: len(s.strip()) >= 4)
SECRET = WORDS | st.integers(1_000, 10**12) | st.floats(1_000.25, 1e6)
PLAIN = st.none() | st.booleans() | st.integers(0, 999) | st.sampled_from(["x", "yes", "tea"])


def payloads() -> st.SearchStrategy[dict[str, Any]]:
    card = st.fixed_dictionaries({"number": SECRET, "bank": PLAIN})
    return st.fixed_dictionaries(
        {"password": SECRET, "card": card, "keys": st.lists(SECRET, max_size=3), "people": st.lists(card, max_size=3)},
        optional={"note": PLAIN},
    )


PATHS = ("password", "card.number", "keys.*", "people.number")


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in [k, *leaves(v)]]
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, list) else [value]


def secrets_of(payload: dict[str, Any]) -> list[Any]:
    people = [p["number"] for p in payload["people"]]
    return [payload["password"], payload["card"]["number"], *payload["keys"], *people]


def holds(value: Any, secret: Any) -> bool:
    text = secret if isinstance(secret, str) else json.dumps(secret)
    return any(text in leaf if isinstance(leaf, str) else leaf == secret for leaf in leaves(value))


@given(payloads())
def test_what_the_paths_name_is_hidden_and_the_rest_is_not(payload: dict[str, Any]) -> None:
    before = json.dumps(payload)
    seen = shown(payload, PATHS)
    assert seen["password"] == seen["card"]["number"] == HIDDEN
    assert seen["keys"] == [HIDDEN] * len(payload["keys"])
    assert seen["card"]["bank"] == payload["card"]["bank"]
    assert [p["number"] for p in seen["people"]] == [HIDDEN] * len(payload["people"])
    assert seen.get("note") == payload.get("note")
    assert json.dumps(payload) == before


@given(payloads())
def test_no_secret_is_left_in_anything_that_was_made_from_it(payload: dict[str, Any]) -> None:
    hidden = Secrets(secrets_in(payload, PATHS))
    found = secrets_of(payload)
    said = {
        "text": " and ".join(map(str, found)),
        "json": json.dumps(payload),
        "python": repr(payload),
        "copies": [*found, {"deep": [payload]}],
        **{str(s): s for s in found},
    }
    seen = hidden.scrub(said)
    for secret in found:
        assert not holds(seen, secret), secret
        assert json.dumps(secret).strip('"') not in json.dumps(seen["json"]).replace("\\\\", "\\")


@given(st.recursive(PLAIN | WORDS, lambda i: st.lists(i) | st.dictionaries(WORDS, i), max_leaves=20), st.lists(WORDS))
def test_any_path_may_be_asked_of_any_value(value: Any, path: list[str]) -> None:
    shown(value, [".".join(path) or "a"])
    secrets_in(value, [".".join(path) or "a"])


@pytest.mark.parametrize(
    ("value", "path", "seen"),
    [
        ({"a": {"b": 1}}, "a", {"a": "***"}),
        ({"a": {"b": 1}}, "a.*", {"a": {"b": "***"}}),
        ({"a": [{"b": 1}, {"c": 2}]}, "a.*.b", {"a": [{"b": "***"}, {"c": 2}]}),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.b", {"a": [{"b": "***"}, {"b": "***"}]}),
        ({"a": [1, 2, 3]}, "a.1", {"a": [1, "***", 3]}),
        ([{"b": 1}], "b", [{"b": "***"}]),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", {"a.b": "***", "a": {"b": "***"}}),
        ({"a": None}, "a", {"a": "***"}),
        ({"a": 1}, "a.b", {"a": 1}),
        ("text", "a", "text"),
        (None, "a", None),
    ],
)
def test_a_path_names(value: Any, path: str, seen: Any) -> None:
    assert shown(value, [path]) == seen


def test_what_is_short_is_hidden_in_its_place_alone() -> None:
    value = {"pin": "123", "ok": True, "n": 12, "said": "123 is true, 12"}
    paths = ("pin", "ok", "n")
    assert shown(value, paths) == {"pin": "***", "ok": "***", "n": "***", "said": "123 is true, 12"}
    assert secrets_in(value, paths) == set()


def test_the_longer_of_two_secrets_goes_whole() -> None:
    assert scrub("abcdefgh", ["abcd", "abcdefgh"]) == "***"


def test_a_number_is_found_as_text_and_text_of_digits_as_a_number() -> None:
    assert scrub(["n=4711", 4711, 4711.0, 47110], secrets_in({"n": 4711}, ["n"])) == ["n=***", "***", "***", 47110]
    assert scrub(["n=4711", 4711], secrets_in({"n": "4711"}, ["n"])) == ["n=***", "***"]


def test_it_is_found_as_a_url_writes_it() -> None:
    found = secrets_in({"p": "a b/c&d"}, ["p"])
    assert scrub("?p=a+b%2Fc%26d ?p=a%20b/c%26d", found) == "?p=*** ?p=***"


@pytest.mark.parametrize("redact", ["password", ["a..b"], [""], [".a"], [1], ["x" * 201], ["a\n"], ["a"] * 101])
def test_a_path_that_makes_no_sense_is_refused(redact: Any) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.redact"):
        Policy(redact=redact)


def test_a_policy_keeps_its_paths() -> None:
    policy = Policy(redact=["a.b", "c"])  # type: ignore[arg-type]
    assert Policy.from_body(policy.body) == policy
    assert policy.redact == ("a.b", "c")
