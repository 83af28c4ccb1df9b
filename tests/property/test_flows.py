"""Random flows on random walks: both stores must agree at every step, no rule may be broken, nothing may be stuck."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.flow_twins import Side, Trip, small_steps
from tests.property.flow_walk import Walk, walks
from tests.property.twins import Pair

THOROUGH = settings().max_examples > 1000


@settings(max_examples=1000 if THOROUGH else 12, suppress_health_check=[*HealthCheck])
@given(walk=walks, small=st.sampled_from((None, 2, 3)))
def test_every_walk_through_flows_comes_to_its_end_on_both_stores(both: Pair, walk: Walk, small: int | None) -> None:
    twins = both.fresh()
    trip = Trip([Side(store.name, store.engine) for store in twins.stores], both.clock, verify_every=4)
    try:
        with small_steps(small):
            trip.go(walk)
            trip.finish()
    except AssertionError as e:
        way = "\n".join(f"{n}: {step}" for n, step in enumerate(trip.trail))
        raise AssertionError(f"in steps of {small}, after {len(trip.trail)}:\n{way}\n{e}") from e
