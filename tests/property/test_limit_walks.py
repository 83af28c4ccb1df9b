"""Long walks through limits, fairness, debounced submits and schedules, on each database.

A failure names its seed: `pytest tests/property/test_limit_walks.py -k sqlite-7`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from onetray.domain.clock import VirtualClock
from onetray.engine import Engine
from tests.property.limit_walk import LimitWalk
from tests.support.engines import must_verify

THOROUGH = settings().max_examples > 1000
FIRST = int(os.environ.get("ONETRAY_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + (200 if THOROUGH else 6))
STEPS = 200


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_hold_and_nothing_is_stuck(engine: Engine, clock: VirtualClock, seed: int) -> None:
    walk = LimitWalk(engine, clock, seed)
    try:
        walk.go(STEPS // 2)
        must_verify(engine)
        walk.go(STEPS // 2)
        walk.finish()
    except Exception as e:
        raise AssertionError(f"seed {seed}, after {len(walk.trail)} steps: {e}\n{walk.trail[-12:]}") from e
