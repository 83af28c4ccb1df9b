"""A process may be killed anywhere: no slot leaks, no lane is lost, a limit is in force or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.failpoints import LIMIT_POINTS
from tests.support import fleet
from tests.support.dying_processes import do_step_and_die
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger
from tests.support.generations import KILLED

COMMIT = ("committing", "committed")
KILLED_AT = {
    "submit": ("lanes_shared", *COMMIT),
    "claim": ("lanes_locked", "slots_locked", "slots_taken", *COMMIT),
    "succeed": ("slots_locked", *COMMIT),
    "expire": ("slots_locked", *COMMIT),
    "set_limit": ("limit_added", "limit_committed", *COMMIT),
}


def test_the_steps_reach_every_point_there_is() -> None:
    assert {point for points in KILLED_AT.values() for point in points} == {*LIMIT_POINTS, *COMMIT}


@pytest.mark.parametrize("step", KILLED_AT)
def test_whoever_is_killed_leaves_limits_whole(
    database_url: str, tmp_path: Path, clock: VirtualClock, step: str
) -> None:
    with engine_on(database_url, clock) as engine:
        engine.configure("mail", Policy(backoff_base_s=0, concurrency=Concurrency(2, key="tenant")))
        for n, point in enumerate(KILLED_AT[step]):
            prepare_step(engine, clock, step)
            ledger = tmp_path / f"{n}"
            process = fleet.start(do_step_and_die, database_url, clock.now(), step, point, str(ledger))
            fleet.end_all([process], 60, exitcode=KILLED)
            assert not Ledger.read(ledger), "the call returned before its point"
            must_verify(engine)
            finish(engine, clock)
            assert [limit.running for limit in engine.limits()] == [0] * len(engine.limits())
            assert engine.queues()[0].ready == 0, point


def prepare_step(engine: Engine, clock: VirtualClock, step: str) -> None:
    if step != "submit":
        for n in range(3):
            engine.submit("mail", n)
    if step in ("succeed", "expire", "set_limit"):
        assert len(engine.claim(worker="victim", limit=3, request_key="held")) == 2
    if step == "expire":
        clock.advance(61)
    for limit in engine.limits():
        if limit.key is None:
            engine.remove_limit(limit.id)


def finish(engine: Engine, clock: VirtualClock) -> None:
    """Let the janitor take back what the dead held, and another worker do what is left, within the limit."""
    clock.advance(61)
    while engine.sweep():
        pass
    while claimed := engine.claim(worker="heir", limit=10):
        assert len(claimed) <= 2
        for assignment in claimed:
            engine.succeed(assignment)
