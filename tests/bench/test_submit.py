"""`./go bench submit`: single submits, by hand, by one caller and by many."""

from collections.abc import Callable
from typing import Any

import pytest

SMALL = ("--jobs", 3, "--callers", 3, "--each", 2, "--rounds", 1)
TIMES = {"per_s", "p50_ms", "p99_ms"}


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_one_caller_is_set_beside_transactions_by_hand_and_many_beside_one(store: str, run: Callable[..., Any]) -> None:
    found = run("submit", "--store", store, *SMALL)["submit"][store]
    assert {way: set(figures) - TIMES for way, figures in found.items()} == {
        "by_hand": set(),
        "one": {"to_by_hand"},
        "threads": {"to_one"},
        "aio": {"to_one"},
    }
    for figures in found.values():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert found["one"]["to_by_hand"] == pytest.approx(found["one"]["per_s"] / found["by_hand"]["per_s"], rel=0.01)


@pytest.mark.parametrize("wrong", [("--callers", "0"), ("--each", "0"), ("--store", "redis")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str], refused: Callable[..., str]) -> None:
    assert wrong[0] in refused("submit", *wrong)
