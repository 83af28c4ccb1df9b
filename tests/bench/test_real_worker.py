"""`./go bench flow` and `memory`: one real worker."""

from collections.abc import Callable
from typing import Any

import pytest


def test_a_flow_is_set_beside_as_many_single_tasks(run: Callable[..., Any]) -> None:
    found = run("flow", "--store", "sqlite", "--stages", 3, "--size", 4, "--rounds", 1)["flow"]["sqlite"]
    assert found["ratio"] == pytest.approx(found["flow"] / found["single"], abs=0.001)


def test_memory_is_never_more_than_its_highest(run: Callable[..., Any]) -> None:
    found = run("memory", "--store", "postgres", "--jobs", 20)["memory"]["postgres"]
    assert 0 < found["start_mib"] <= found["peak_mib"]
    assert 0 < found["end_mib"] <= found["peak_mib"]


@pytest.mark.parametrize("wrong", [("flow", "--stages", "0"), ("flow", "--size", "0"), ("memory", "--jobs", "0")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str, str], refused: Callable[..., str]) -> None:
    assert wrong[1] in refused(*wrong)
