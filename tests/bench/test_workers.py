"""`./go bench workers`: real worker processes, and what is read from the database that they leave."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.workers import lengths

FIGURES = {"drain", "least_share", "most_share", "short_done", "short_to_long", "deadlocks", "serialization_failures"}


def test_workers_share_the_jobs_of_unequal_queues(run: Callable[..., Any]) -> None:
    found = run("workers", "--store", "postgres", "--counts", 2, "--queues", 2, "--jobs", 30, "--rounds", 1)
    figures = found["workers"]["postgres"]["2"]["2"]
    assert set(figures) == FIGURES
    assert figures["drain"] > 0
    assert figures["least_share"] + figures["most_share"] == pytest.approx(2)


def test_each_queue_is_half_as_long_as_the_one_before() -> None:
    assert lengths(1, 10) == {"q1": 10}
    assert lengths(3, 700) == {"q1": 400, "q2": 200, "q3": 100}
    assert lengths(4, 3)["q4"] == 1


@pytest.mark.parametrize("wrong", [("--counts", "0"), ("--counts", "one"), ("--queues", ""), ("--jobs", "0")])
def test_arguments_out_of_range_are_refused(wrong: tuple[str, str], refused: Callable[..., str]) -> None:
    assert wrong[0] in refused("workers", *wrong)
