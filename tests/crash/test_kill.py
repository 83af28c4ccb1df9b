"""A process may be killed anywhere: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.failpoints import POINTS
from tests.support import fleet
from tests.support.audit import audit
from tests.support.dying_processes import do_step_and_die
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger
from tests.support.generations import EVENT_OF, KILLED, die, drained, lost, prepare

COMMIT = ("committing", "committed")
"""What was committed too early is there by the first of them."""
KILLED_AT = {
    "submit": COMMIT,
    "claim": ("begun", "moving", "updated", "moved", "claimed", *COMMIT),
    "start": COMMIT,
    "succeed": ("begun", "locked", "moving", "updated", "moved", *COMMIT),
    "fail": COMMIT,
    "expire": COMMIT,
    "prune": COMMIT,
}
EVENT = {**EVENT_OF, "expire": "task.lease_expired"}


def events(engine: Engine, type_: str) -> Counter[int]:
    rows = engine.store.read_sql("SELECT entity FROM onetray.event WHERE type = :type", type=type_)
    return Counter(entity for (entity,) in rows)


def test_the_steps_of_the_crash_tests_reach_every_point_there_is() -> None:
    assert {point for points in KILLED_AT.values() for point in points} == set(POINTS)


def set_the_stage(engine: Engine, clock: VirtualClock, step: str) -> list[str]:
    """Three tasks in the state that the step begins from; answers their ids."""
    engine.configure("mail", Policy(backoff_base_s=0))
    engine.resume_queue("default")
    ids = [engine.submit("mail", n).id or "" for n in range(3)] if step != "submit" else []
    if step in ("start", "succeed", "fail", "expire"):
        engine.claim(worker="victim", limit=3, request_key="held")
    if step == "expire":
        clock.advance(61)
    if step == "prune":
        for id_ in ids:
            engine.cancel(id_)
        engine.submit("other", queue="elsewhere")  # Its event is the newest: the others may be pruned.
        clock.advance(10)
    return ids


def done(engine: Engine, step: str) -> int:
    """How many tasks the step has been done to."""
    if step == "prune":
        return 3 - int(engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NOT NULL")[0][0])
    known = events(engine, EVENT[step])
    assert max(known.values(), default=0) <= 1
    return sum(known.values())


def finish(engine: Engine, clock: VirtualClock) -> None:
    """Let the janitor take back what the dead held, and another worker do what is left."""
    clock.advance(61)
    while engine.sweep():
        pass
    for queue in ("default", "elsewhere"):
        for assignment in engine.claim(queue, worker="heir", limit=10):
            engine.succeed(assignment)


@pytest.mark.parametrize("step", KILLED_AT)
def test_a_kill_in_a_step_leaves_all_of_it_or_nothing(
    step: str, database_url: str, tmp_path: Path, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        set_the_stage(engine, clock, step)
        for point in KILLED_AT[step]:
            ledger = tmp_path / point
            process = fleet.start(do_step_and_die, database_url, clock.now(), step, point, str(ledger))
            fleet.end_all([process], 60, exitcode=KILLED)
            assert not Ledger.read(ledger), "the call returned before its point"
            assert done(engine, step) == (3 if point == "committed" else 0), point
            must_verify(engine)
        finish(engine, clock)
        found = audit(engine.store)
        assert not found.faults, found.faults
        assert not found.still_open


def test_nothing_acknowledged_is_lost_when_workers_are_killed_between_and_inside_their_calls(
    database_url: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    deaths = list(zip((*POINTS, "acknowledged"), (9, 21, 13, 30, 17, 8, 25, 33, 19), strict=True))
    with engine_on(database_url) as engine:
        prepare(engine)
        die(database_url, ledger, deaths)
        fleet.wait_until(lambda: drained(engine))
        assert len(Ledger.read(ledger)) > 50
        assert not lost(engine, ledger)
        found = audit(engine.store)
        assert not found.faults, found.faults
