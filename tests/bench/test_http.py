"""`./go bench http`: the server beside a bare one."""

from collections.abc import Callable
from typing import Any

import pytest

SMALL = ("--jobs", 8, "--clients", 2, "--rounds", 1)


def test_submits_and_reports_are_set_beside_a_bare_route(run: Callable[..., Any]) -> None:
    found = run("http", "--store", "sqlite", "--batch", 4, *SMALL)["http"]["sqlite"]["4"]
    assert set(found) == {"submit", "claim_report"}
    for sides in found.values():
        ours, bare = sides["onetray"], sides["bare"]
        assert ours["to_bare"] == pytest.approx(ours["requests_per_s"] / bare["requests_per_s"], rel=0.01, abs=0.001)
        for figures in (ours, bare):
            assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_arguments_out_of_range_are_refused(refused: Callable[..., str]) -> None:
    assert "--clients" in refused("http", "--clients", "0")
