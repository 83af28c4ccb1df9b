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


def test_tasks_of_jobnik_are_taken_and_completed(run: Callable[..., Any]) -> None:
    found = run("http", "--dialect", "jobnik", "--store", "sqlite", *SMALL)["http"]["sqlite"]["jobnik"]
    assert found["to_manager"] == pytest.approx(found["jobs_per_s"] / 77, rel=0.01, abs=0.01)
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    assert found["cpu_us_per_request"] > 0


def test_tasks_are_claimed_and_completed_by_tools(run: Callable[..., Any]) -> None:
    found = run("http", "--dialect", "mcp", "--store", "sqlite", *SMALL)["http"]["sqlite"]["mcp"]
    assert found["to_in_process"] == pytest.approx(found["jobs_per_s"] / 470, rel=0.01, abs=0.01)
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    assert found["cpu_us_per_request"] > 0
