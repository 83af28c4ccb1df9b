"""Redaction: whatever the payload is, what the paths name is nowhere in what is shown."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onetray.domain import redactor
from onetray.domain.errors import InvalidInput
from onetray.domain.policy import Policy
from onetray.domain.redactor import HIDDEN, Secrets, redact_paths, scrub, secrets_in
from tests.support.cases import each_case

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
    seen = redact_paths(payload, PATHS)
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
    redact_paths(value, [".".join(path) or "a"])
    secrets_in(value, [".".join(path) or "a"])


@each_case(
    ("value", "path", "seen"),
    [
        ({"a": {"b": 1}}, "a", {"a": "***"}),
        ({"a": {"b": 1}}, "a.*", {"a": {"b": "***"}}),
        ({"a": [{"b": 1}, {"c": 2}]}, "a.*.b", {"a": [{"b": "***"}, {"c": 2}]}),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.b", {"a": [{"b": "***"}, {"b": "***"}]}),
        ({"a": [1, 2, 3]}, "a.1", {"a": [1, "***", 3]}),
        ({"a": [1, 2, 3]}, "a.01", {"a": [1, "***", 3]}),
        ({"a": [[{"b": 1}], {"0": {"b": 2}}]}, "a.0.b", {"a": [[{"b": "***"}], {"0": {"b": 2}}]}),
        ([{"b": 1}], "b", [{"b": "***"}]),
        ({"a.b": 1, "a": {"b": 2}}, "a.b", {"a.b": "***", "a": {"b": "***"}}),
        ({"a": None}, "a", {"a": "***"}),
        ({"a": 1}, "a.b", {"a": 1}),
        ("text", "a", "text"),
        (None, "a", None),
    ],
)
def test_a_path_names(value: Any, path: str, seen: Any) -> None:
    assert redact_paths(value, [path]) == seen


def test_what_is_short_is_hidden_in_its_place_alone() -> None:
    value = {"pin": "123", "ok": True, "n": 12, "said": "123 is true, 12"}
    paths = ("pin", "ok", "n")
    assert redact_paths(value, paths) == {"pin": "***", "ok": "***", "n": "***", "said": "123 is true, 12"}
    assert secrets_in(value, paths) == set()


def test_the_longer_of_two_secrets_goes_whole() -> None:
    assert scrub("abcdefgh", ["abcd", "abcdefgh"]) == "***"


FEW = st.text(alphabet="ab", min_size=1, max_size=6) | st.text(alphabet="aé\ud800 -^]", min_size=4, max_size=5)


def occurrences(text: str, secrets: set[str]) -> list[tuple[int, int]]:
    return [(at, at + len(s)) for at in range(len(text)) for s in secrets if text.startswith(s, at)]


def by_one_expression(text: str, secrets: set[str]) -> str:
    """The plain way, too slow for many secrets: each of them is tried at each character, the longest first."""
    longest_first = sorted(secrets, key=lambda s: (-len(s), s))
    return re.sub("|".join(map(re.escape, longest_first)), HIDDEN, text)


@settings(max_examples=300)
@given(st.lists(FEW | WORDS, max_size=12).map("".join), st.sets(FEW | WORDS, min_size=1, max_size=8))
def test_texts_are_found_as_by_one_expression_and_nothing_is_left_where_they_overlap(
    text: str, secrets: set[str]
) -> None:
    covered = [False] * len(text)
    for start, end in occurrences(text, secrets):
        covered[start:end] = [True] * (end - start)
    left = "".join(c for c, hidden in zip(text, covered, strict=True) if not hidden)
    seen = scrub(text, secrets)
    assert seen.replace(HIDDEN, "") == left
    if by_one_expression(text, secrets).replace(HIDDEN, "") == left:
        assert seen.count(HIDDEN) <= by_one_expression(text, secrets).count(HIDDEN)


def test_two_secrets_that_overlap_are_both_hidden_whole() -> None:
    assert scrub("<abcdefghi>", ["abcdef", "defghi"]) == "<***>"
    assert scrub("aaaaaa", ["aaaa"]) == "***"
    assert scrub("abcdabcd", ["abcd"]) == "******"


MANY = 10_000
ALIKE = [f"sk_live_{n:08x}" for n in range(MANY)]


def test_many_secrets_that_begin_alike_are_all_found() -> None:
    secrets = Secrets(ALIKE)
    said = [f"{n} goes with {ALIKE[n % MANY]}, not with sk_live_0 or {ALIKE[n % MANY][:-1]}" for n in range(3_000)]
    assert secrets.scrub(said) == [
        f"{n} goes with ***, not with sk_live_0 or {ALIKE[n % MANY][:-1]}" for n in range(3_000)
    ]


@each_case("end", ["", "c"])
def test_a_text_that_would_take_too_long_is_hidden_whole(end: str) -> None:
    """Secrets that begin with each other, and a text that is nothing but their beginnings."""
    secrets = Secrets("a" * n + end for n in range(4, 2_000))
    assert secrets.scrub("a" * 200_000) == HIDDEN
    assert secrets.scrub("bbb aaa") == "bbb aaa"


def test_others_get_their_turn_while_a_long_text_is_looked_through() -> None:
    """One expression for all keeps the interpreter to itself from the first character to the last."""
    secrets, text = Secrets(ALIKE), " ".join(f"{n:x} sk_live_none" for n in range(20_000))
    assert secrets.scrub(text) == text
    # On a busy machine this thread may sleep through a look. It never gets three turns in one that keeps them.
    assert any(turns_during(lambda: secrets.scrub(text)) >= 3 for _ in range(100))


def turns_during(look: Callable[[], object]) -> int:
    """How often this thread runs while another one does that."""
    started, turns, ended = threading.Event(), 0, threading.Event()

    def look_through() -> None:
        started.set()
        try:
            look()
        finally:
            ended.set()

    thread = threading.Thread(target=look_through)
    thread.start()
    assert started.wait(30)
    while not ended.wait(0.001):
        turns += 1
    thread.join()
    return turns


def test_too_many_secrets_hide_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Secrets(ALIKE).everything
    monkeypatch.setattr(redactor, "MAX_TEXTS", MANY - 1)
    assert Secrets(ALIKE).scrub({"seen": "no"}) == HIDDEN
    monkeypatch.undo()
    monkeypatch.setattr(redactor, "MAX_CHARS", 100)
    assert Secrets(["x" * 101]).scrub("seen") == HIDDEN


def test_a_number_is_found_as_text_and_text_of_digits_as_a_number() -> None:
    assert scrub(["n=4711", 4711, 4711.0, 47110], secrets_in({"n": 4711}, ["n"])) == ["n=***", "***", "***", 47110]
    assert scrub(["n=4711", 4711], secrets_in({"n": "4711"}, ["n"])) == ["n=***", "***"]


def test_it_is_found_as_a_url_writes_it() -> None:
    found = secrets_in({"p": "a b/c&d"}, ["p"])
    assert scrub("?p=a+b%2Fc%26d ?p=a%20b/c%26d", found) == "?p=*** ?p=***"


@each_case("redact", ["password", ["a..b"], [""], [".a"], [1], ["x" * 201], ["a\n"], ["a"] * 101])
def test_a_path_that_makes_no_sense_is_refused(redact: Any) -> None:
    with pytest.raises(InvalidInput, match=r"policy\.redact"):
        Policy(redact=redact)


def test_a_policy_keeps_its_paths() -> None:
    policy = Policy(redact=["a.b", "c"])  # type: ignore[arg-type]
    assert Policy.from_body(policy.body) == policy
    assert policy.redact == ("a.b", "c")
