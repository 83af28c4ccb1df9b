"""A process may be killed anywhere: what was acknowledged is there, what was not is there whole or not at all."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

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
ENDS = ("begun", "committing", "committed")
MOVES = ("moving", "updated", "moved")
REACHED = {
    "submit": ENDS,
    "claim": (*ENDS, *MOVES, "claimed"),
    "start": (*ENDS, "locked", *MOVES),
    "succeed": (*ENDS, "locked", *MOVES),
    "fail": (*ENDS, "locked", *MOVES),
    "expire": (*ENDS, "locked", *MOVES),
    "prune": ENDS,
}
EVENT_OF = {
    "submit": "task.submitted",
    "claim": "task.claimed",
    "start": "task.started",
    "succeed": "task.succeeded",
    "fail": "task.failed",
}


def events(engine: Engine, type_: str) -> Counter[str]:
    rows = engine.store.read_sql(
        "SELECT CAST(t.id AS text) FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity "
        "WHERE e.type = :type",
        type=type_,
    )
    return Counter(r[0] for r in rows)


def test_the_steps_of_the_crash_tests_reach_every_point_there_is() -> None:
    assert {p for points in REACHED.values() for p in points} == set(POINTS)


def set_the_stage(engine: Engine, clock: VirtualClock, step: str) -> list[str]:
    """Three tasks in the state that the step begins from; answers their ids."""
    engine.configure("mail", Policy(backoff_base_s=0, idempotency_ttl_s=1))
    engine.submit("other", queue="elsewhere")  # Its event is the newest: the others may be pruned.
    if step == "submit":
        return []
    ids = [engine.submit("mail", n).id or "" for n in range(3)]
    if step in ("claim", "prune"):
        if step == "prune":
            for id_ in ids:
                engine.cancel(id_)
            engine.submit("other", queue="elsewhere")
            clock.advance(10)
        return ids
    engine.claim(worker="victim", limit=3, request_key="held")
    if step == "expire":
        clock.advance(61)
    return ids


def after_the_step(engine: Engine, step: str, ids: list[str]) -> bool:
    """Whether the step is done, all of it. Half of it is a failure of the test."""
    if step == "prune":
        left = engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NOT NULL")[0][0]
        assert left in (0, 3), "half of the jobs were pruned"
        return left == 0
    type_ = {"expire": "task.lease_expired"}.get(step) or EVENT_OF[step]
    known = events(engine, type_)
    if step == "submit":
        done = sum(known.values()) - 1
        assert done in (0, 3), "half of the batch was submitted"
        return done == 3
    done = sum(1 for id_ in ids if known[id_] == 1)
    assert done in (0, 3), f"half of the batch was written: {known}"
    assert max(known.values(), default=0) <= 1
    return done == 3


@pytest.mark.parametrize("step", REACHED)
def test_a_kill_at_any_point_of_a_step_leaves_all_of_it_or_nothing(
    step: str, database_url: str, tmp_path: Path, clock: VirtualClock
) -> None:
    with engine_on(database_url, clock) as engine:
        ids = set_the_stage(engine, clock, step)
        for point in REACHED[step]:
            if after_the_step(engine, step, ids):
                assert point == REACHED[step][0]
            ledger = tmp_path / point
            process = fleet.start(victim, database_url, clock.now(), step, point, 1, str(ledger))
            fleet.end_all([process], 60, exitcode=KILLED)
