"""`./go bench retention`: a drain while old jobs are removed beside it."""

from collections.abc import Callable
from typing import Any

import pytest


def test_a_drain_beside_the_removal_is_set_beside_one_without(run: Callable[..., Any]) -> None:
    found = run("retention", "--store", "sqlite", "--old", 30, "--jobs", 20, "--rounds", 1)["retention"]["sqlite"]
    assert found["ratio"] == pytest.approx(found["drain_beside"] / found["drain"], rel=0.01)
    assert 0 <= found["old_left"] <= 30
