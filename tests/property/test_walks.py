"""Long walks, each from its seed: both stores and the model must agree at every step.

A failure names its seed: `pytest "tests/property/test_walks.py::test_a_long_walk_ends_where_the_model_says[7]"`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.property.twins import Pair
from tests.property.walk import Walk

THOROUGH = settings().max_examples > 1000
FIRST = int(os.environ.get("ONETRAY_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + (500 if THOROUGH else 8))
STEPS = 250


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_walk_ends_where_the_model_says(both: Pair, seed: int) -> None:
    twins = both.fresh()
    walk = Walk(twins, seed)
    try:
        walk.go(STEPS)
        twins.finish()
    except AssertionError as e:
        steps = "\n".join(f"{n}: {step}" for n, step in enumerate(walk.trail[-5:], len(walk.trail) - 5))
        raise AssertionError(f"seed {seed}, after {len(walk.trail)} steps: {e}\n{steps}") from e


def test_the_same_seed_makes_the_same_walk(both: Pair) -> None:
    def walked() -> list[object]:
        twins = both.fresh()
        Walk(twins, 1).go(60)
        return [(t.state, t.version, t.fence, t.attempts, t.run_at - t.created_at) for t in twins.model.tasks]

    assert walked() == walked()
