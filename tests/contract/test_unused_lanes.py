"""Lanes that nothing uses go with retention, and no process puts a task into one that is gone."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine, unused_lanes
from onetray.store import lanes as store_lanes
from tests.contract.test_limits import claim, submit
from tests.contract.test_unused_kinds import DAY, rounds
from tests.support.engines import engine_on, must_verify


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lanes are many; a pass has several steps."""
    for name, value in (("MANY", 3), ("SPAN", 2), ("BATCH", 2), ("PASS_LANES", 4)):
        monkeypatch.setattr(unused_lanes, name, value)


def values(engine: Engine) -> dict[str, bool]:
    """The lanes, and whether each is retired."""
    rows = engine.store.read_sql("SELECT value, retired_at FROM onetray.lane")
    return {value[11:-2]: at is not None for value, at in rows}


def serve_all(engine: Engine) -> None:
    while claimed := claim(engine):
        for a in claimed:
            engine.succeed(a)


def test_lanes_that_nothing_uses_are_retired_and_go_days_later(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(concurrency=(Concurrency(1, key="tenant"),)))
    submit(engine, "abcdef")
    serve_all(engine)
    submit(engine, ["later"], delay_s=1000 * DAY)
    walk = engine.retention(60)
    rounds(engine, clock, walk)
    assert values(engine) == {**dict.fromkeys("abcdef", True), "later": False}
    clock.advance(8 * DAY)
    rounds(engine, clock, walk, 5)
    assert values(engine) == {"later": False}
    assert [value.value for value in engine.limit_values(engine.limits()[0].id)] in ([], ["later"])
    must_verify(engine)


def test_a_submit_takes_a_retired_lane_back(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.configure("mail", Policy(fair_by="tenant"))
    submit(engine, "abcdef")
    serve_all(engine)
    rounds(engine, clock, engine.retention(60))
    monkeypatch.setattr(store_lanes, "MAX_AGE_S", -1.0)
    submit(engine, ["a"], delay_s=DAY)
    submit(engine, ["b"])
    assert [value for value, is_retired in sorted(values(engine).items()) if not is_retired] == ["a", "b"]
    assert len(claim(engine)) == 1


def test_a_process_that_knows_a_deleted_lane_makes_a_new_one(database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, clock) as engine, engine_on(database_url, clock) as other:
        engine.configure("mail", Policy(fair_by="tenant", concurrency=(Concurrency(1, key="tenant"),)))
        other.store.names.refresh()
        submit(engine, "abcdef")
        submit(other, "a")
        serve_all(other)
        walk = engine.retention(60)
        rounds(engine, clock, walk)
        clock.advance(8 * DAY)
        rounds(engine, clock, walk, 5)
        assert values(engine) == {}
        submit(other, "aa")
        while not (held := claim(other)):
            pass
        assert len(held) == 1
        assert claim(engine) == []
