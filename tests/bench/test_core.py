"""`./go bench core`, `flows` and `pickup`: the engine beside the same rows by hand, large stages, an idle worker."""

from collections.abc import Callable
from typing import Any

import pytest


def test_the_engine_is_set_beside_the_same_rows_by_hand(run: Callable[..., Any]) -> None:
    found = run("core", "--store", "sqlite", "--batch", "5,10", "--jobs", 20, "--rounds", 1)["core"]["sqlite"]
    assert set(found) == {"5", "10"}
    for figures in found.values():
        assert figures["ratio"] == pytest.approx(figures["drain"] / figures["limit_drain"], rel=0.01)


def test_the_cost_of_a_large_stage_is_given_as_a_ratio(run: Callable[..., Any]) -> None:
    result = run("flows", "--store", "sqlite", "--size", 1000, "--most", 1000)
    figures = result["flows"]["sqlite"]
    assert result["growth"] == {"sqlite": figures["growth"]}
    assert figures["growth"] == pytest.approx(figures["us_large"] / figures["us_small"], rel=0.01)


def test_a_pickup_has_its_percentiles_in_order(run: Callable[..., Any]) -> None:
    found = run("pickup", "--side", "sqlite_same_process", "--submits", 2, "--rounds", 1)["pickup"]
    figures = found["sqlite_same_process"]
    assert 0 < figures["median_ms"] <= figures["p95_ms"] <= figures["p99_ms"] <= figures["max_ms"]
