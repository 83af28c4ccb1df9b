"""A test of many cases runs all of them, and fails when one of them does."""

from __future__ import annotations

import inspect

import pytest

from tests.support.cases import each_case


def test_every_case_runs_with_the_fixtures_of_the_test() -> None:
    seen = []

    @each_case("number", [1, 2])
    @each_case(("word", "size"), [("a", 1), pytest.param("b", 2, id="second")])
    def test(fixture: str, number: int, word: str, size: int) -> None:
        seen.append((fixture, number, word, size))

    assert list(inspect.signature(test).parameters) == ["fixture"]
    test(fixture="f")
    assert seen == [("f", 1, "a", 1), ("f", 1, "b", 2), ("f", 2, "a", 1), ("f", 2, "b", 2)]


def test_the_failure_names_every_case_that_went_wrong() -> None:
    @each_case("number", [1, 2, 3, 4], ids=lambda number: f"case {number}")
    def test(number: int) -> None:
        if number == 2:
            raise KeyError("no two")
        assert number != 3
        with pytest.raises(ZeroDivisionError):
            1 / (number - 1)

    with pytest.raises(pytest.fail.Exception) as failed:
        test()
    told = str(failed.value)
    assert told.startswith("3 of 4 cases")
    assert "case 2: " in told
    assert "KeyError: 'no two'" in told
    assert "case 3: " in told
    assert "case 4: " in told
    assert "DID NOT RAISE" in told
    assert "case 1: " not in told


def test_a_test_without_a_case_is_refused() -> None:
    with pytest.raises(ValueError, match="no case of number"):
        each_case("number", [])
