"""What leaves no event is counted over all processes: each adds its counts to those of the others."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import LeaseLost, Unavailable
from onetray.domain.worker import WorkerBeat
from onetray.engine import Engine
from onetray.engine.tally import CONFLICTS, RENEWALS
from tests.support.engines import engine_on
from tests.support.tasks import submit, take

BEAT = WorkerBeat(name="w", host="h", pid=1, version="1")


def work(engine: Engine, clock: VirtualClock, namespace: str = "default") -> None:
    """Two accepted heartbeats and one that comes too late."""
    submit(engine, namespace=namespace)
    held = take(engine, namespace=namespace)
    engine.beat(held)
    engine.beat(held)
    clock.advance(held.lease_s + 1)
    with pytest.raises(LeaseLost):
        engine.beat(held)
    engine.sweep()


def test_the_counts_of_all_engines_are_added_up(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    work(engine, clock)
    with engine_on(database_url, clock) as other:
        work(other, clock)
        assert engine.tally.totals("default") == {}
    assert engine.tally.totals("default") == {RENEWALS: 2, CONFLICTS: 1}, "written when it was closed"
    engine.tally.write()
    engine.tally.write()
    assert engine.tally.totals("default") == {RENEWALS: 4, CONFLICTS: 2}


def test_a_worker_that_registers_adds_its_counts(engine: Engine, clock: VirtualClock) -> None:
    work(engine, clock)
    engine.worker_beat(BEAT)
    assert engine.tally.totals("default") == {RENEWALS: 2, CONFLICTS: 1}


def test_each_namespace_has_its_own(engine: Engine, clock: VirtualClock) -> None:
    work(engine, clock, namespace="a")
    engine.tally.write()
    assert (engine.tally.totals("a")[RENEWALS], engine.tally.totals("default")) == (2, {})


def test_what_is_no_lost_lease_is_no_conflict(engine: Engine) -> None:
    submit(engine)
    held = take(engine)
    engine.succeed(held)
    assert engine.succeed(held).repeated
    assert not engine.run([])
    engine.tally.write()
    assert engine.tally.totals("default") == {}


def test_what_cannot_be_written_is_kept(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise Unavailable("away")

    work(engine, clock)
    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "write", away)
        engine.tally.write()
    engine.tally.write()
    assert engine.tally.totals("default") == {RENEWALS: 2, CONFLICTS: 1}
