"""`./go bench limit`: every way to write the rows by hand leaves a database that verifies."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.limits import WAYS
from onetray.store.event_log import BLOCK


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_every_way_is_measured_and_the_best_is_named(store: str, run: Callable[..., Any]) -> None:
    found = run("limit", "--store", store, "--batch", 4, "--jobs", 20, "--rounds", 1)["limit"][store]
    figures = found["4"]
    assert set(figures) == {"submit", *WAYS[store], "best", "best_drain"}
    assert figures["best_drain"] == figures[figures["best"]] == max(figures[way] for way in WAYS[store])
    assert found["single"]["submit"] > 0


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_batch_may_have_more_tasks_than_a_row_of_the_log_has_entries(store: str, run: Callable[..., Any]) -> None:
    jobs = BLOCK + 10
    found = run("core", "--store", store, "--batch", jobs, "--jobs", jobs, "--rounds", 1)["core"][store]
    assert found[str(jobs)]["limit_drain"] > 0


@pytest.mark.parametrize("batch", ["0", "ten", "1,,2"])
def test_batches_are_numbers_above_zero(batch: str, refused: Callable[..., str]) -> None:
    assert "--batch" in refused("limit", "--batch", batch)
