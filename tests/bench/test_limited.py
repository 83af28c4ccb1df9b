"""`./go bench limits` and `./go bench fairness`, small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fairness, limited

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "SLICE", 20)
    monkeypatch.setattr(limited, "BATCH", 10)
    monkeypatch.setattr(fairness, "BATCH", 10)


def test_drains_are_shares_of_a_plain_one(run: Callable[..., Any]) -> None:
    words = ("--store", "sqlite", "--case", "concurrency_key", "--case", "before", "--before", ROOT)
    found = run("limits", *words, "--jobs", 60, "--rounds", 1)["limits"]["sqlite"]
    assert list(found) == ["plain", "concurrency_key", "before"]
    assert found["plain"]["share"] == 1.0
    # A drain that was over at once has no share of CPU. The time beside it is rounded: 0 may also be very little.
    assert found["plain"]["cpu_share"] in ((1.0,) if found["plain"]["cpu_s_per_10k"] else (1.0, None))
    assert all(figures["per_s"] > 0 and figures["share"] > 0 for figures in found.values())


def test_a_drain_without_measured_cpu_has_no_share_of_it() -> None:
    busy, over = [{"cpu_s_per_10k": 0.5, "db_cpu_s_per_10k": None}], [{"cpu_s_per_10k": 0.0, "db_cpu_s_per_10k": None}]
    assert limited._cpu_share(busy, busy) == 1.0
    assert limited._cpu_share(busy, over) is limited._cpu_share(over, busy) is None


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_claims_beside_tasks_that_are_held_back(run: Callable[..., Any], store: str) -> None:
    words = ("--store", store, "--case", "held_back", "--held-back", 30, "--rounds", 1)
    found = run("limits", *words)["limits"][store]
    assert list(found) == ["held_back_without_limits", "held_back_other_tenants"]
    assert all(figures["share"] > 0 for figures in found.values())


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_small_tenant_does_not_wait_for_the_big_one(run: Callable[..., Any], store: str) -> None:
    found = run("fairness", "--store", store, "--big", 300, "--seconds", 0)["fairness"][store]
    assert (found["fair"]["measured"], found["first_in_first_out"]["measured"]) == (True, False)
    assert found["fair"]["claims"] <= 2 < found["first_in_first_out"]["claims"] == 30
