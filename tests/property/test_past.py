"""What the log tells of a job equals the job: at every step of random walks, on both stores."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property.album import Album, each_read_once
from tests.property.flow_twins import Side, Trip, small_steps
from tests.property.flow_walk import Walk as FlowWalk
from tests.property.flow_walk import walks
from tests.property.found_walks import DEADLINE_SKIPS_THE_CURRENT_STAGE
from tests.property.twins import Hand, Pair, Store, Twins
from tests.property.walk import Walk

THOROUGH = settings().max_examples > 1000
FIRST = int(os.environ.get("ONETRAY_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + (100 if THOROUGH else 3))
STEPS = 120


class PhotographedTrip(Trip):
    """A walk through flows, with a snapshot after each step."""

    def __init__(self, sides: list[Side], clock: Hand) -> None:
        super().__init__(sides, clock, verify_every=1_000)
        self.albums = [Album(side.engine) for side in sides]

    def compare(self) -> None:
        super().compare()
        for album in self.albums:
            album.take()


class PhotographedTwins(Twins):
    """The same with single tasks."""

    def __init__(self, stores: list[Store], clock: Hand) -> None:
        super().__init__(stores, clock)
        self.albums = [Album(store.engine) for store in stores]

    def compare(self) -> None:
        super().compare()
        for album in self.albums:
            album.take()


@settings(max_examples=200 if THOROUGH else 5, suppress_health_check=[*HealthCheck])
@given(walk=walks, small=st.sampled_from((None, 2, 3)))
@example(walk=DEADLINE_SKIPS_THE_CURRENT_STAGE, small=2)
def test_the_log_of_a_flow_tells_what_the_flow_was_at_every_step(both: Pair, walk: FlowWalk, small: int | None) -> None:
    trip = PhotographedTrip([Side(store.name, store.engine) for store in both.fresh().stores], both.clock)
    try:
        with small_steps(small):
            trip.go(walk)
            trip.finish()
        must_agree(trip.albums)
    except AssertionError as e:
        way = "\n".join(f"{n}: {step}" for n, step in enumerate(trip.trail))
        raise AssertionError(f"in steps of {small}:\n{way}\n{e}") from e


@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_of_a_task_tells_what_the_task_was_at_every_step(both: Pair, seed: int) -> None:
    twins = PhotographedTwins(both.fresh().stores, both.clock)
    Walk(twins, seed).go(STEPS)
    must_agree(twins.albums)


def must_agree(albums: Sequence[Album]) -> None:
    compared = []
    for album in albums:
        with each_read_once(album.engine.store):
            compared.append(album.compare())
            album.replay()
    assert len(set(compared)) == 1, compared
