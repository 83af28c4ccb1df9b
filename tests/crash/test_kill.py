"""A process may be killed anywhere: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onetray.clock import VirtualClock
from onetray.engine import Engine
from onetray.model import Policy
from onetray.points import POINTS
from tests.support import fleet
from tests.support.audit import audit
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger
from tests.support.victims import victim, worker_that_dies

KILLED = -signal.SIGKILL
BEGIN, END = ("begun",), ("committing", "committed")
MOVES = ("moving", "updated", "moved")
REACHED = {
    "submit": (*BEGIN, *END),
    "claim": (*BEGIN, *MOVES, "claimed", *END),
    "start": (*BEGIN, "locked", *MOVES, *END),
    "succeed": (*BEGIN, "locked", *MOVES, *END),
    "fail": (*BEGIN, "locked", *MOVES, *END),
    "expire": (*BEGIN, "locked", *MOVES, *END),
    "prune": (*BEGIN, *END),
}
EVENT_OF = {
    "submit": "task.submitted",
    "claim": "task.claimed",
    "start": "task.started",
    "succeed": "task.succeeded",
    "fail": "task.failed",
    "expire": "task.lease_expired",
}


def events(engine: Engine, type_: str) -> Counter[int]:
    rows = engine.store.read_sql("SELECT entity FROM onetray.event WHERE type = :type", type=type_)
    return Counter(entity for (entity,) in rows)


def test_the_steps_of_the_crash_tests_reach_every_point_there_is() -> None:
    assert {p for points in REACHED.values() for p in points} == set(POINTS)


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
    known = events(engine, EVENT_OF[step])
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


@pytest.mark.parametrize("step", REACHED)
def test_a_kill_at_any_point_of_a_step_leaves_all_of_it_or_nothing(
    step: str, database_url: str, tmp_path: Path, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        set_the_stage(engine, clock, step)
        for point in REACHED[step]:
            ledger = tmp_path / point
            process = fleet.start(victim, database_url, clock.now(), step, point, str(ledger))
            fleet.end_all([process], 60, exitcode=KILLED)
            assert not Ledger.read(ledger), "the call returned before its point"
            assert done(engine, step) == (3 if point == "committed" else 0), point
            must_verify(engine)
        finish(engine, clock)
        found = audit(engine.store)
        assert not found.faults, found.faults
        assert not found.still_open


def lost(engine: Engine, acknowledged: list[list[Any]]) -> list[Any]:
    """What was acknowledged and is not in the log exactly once."""
    known = {verb: Counter(attempts(engine, type_)) for verb, type_ in EVENT_OF.items() if verb != "expire"}
    return [a for a in acknowledged if known[a[0]][(a[1], a[2])] != 1]


def attempts(engine: Engine, type_: str) -> list[tuple[str, int]]:
    sql = (
        "SELECT CAST(t.id AS text), e.fence FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity "
        "WHERE e.type = :type"
    )
    return [(id_, fence) for id_, fence in engine.store.read_sql(sql, type=type_)]


def test_nothing_acknowledged_is_lost_when_workers_are_killed_between_and_inside_their_calls(
    database_url: str, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    with engine_on(database_url) as engine:
        engine.configure("mail", Policy(backoff_base_s=0, lease_s=0.2))
        engine.resume_queue("default")
        fleet_ = [
            fleet.start(worker_that_dies, database_url, str(ledger), point, hits)
            for point, hits in zip((*POINTS, "acknowledged"), (9, 21, 13, 30, 17, 8, 25, 33, 19), strict=True)
        ]
        fleet.end_all(fleet_, 60, exitcode=KILLED)
        fleet.wait_until(lambda: drained(engine))
        acknowledged = Ledger.read(ledger)
        assert len(acknowledged) > 50
        assert not lost(engine, acknowledged)
        found = audit(engine.store)
        assert not found.faults, found.faults


def drained(engine: Engine) -> bool:
    engine.sweep()
    for assignment in engine.claim(worker="heir", limit=100, lease_s=30):
        engine.succeed(assignment)
    return not engine.store.read_sql("SELECT 1 FROM onetray.task WHERE finished_at IS NULL LIMIT 1")
