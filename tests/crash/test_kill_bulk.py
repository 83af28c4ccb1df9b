"""A process that carries out a bulk operation may be killed anywhere: another one continues, nothing is done twice."""

from __future__ import annotations

import pytest

from onetray.domain.policy import Policy
from onetray.engine import bulk_steps
from tests.support import fleet
from tests.support.dying_processes import do_bulk_steps_and_die
from tests.support.engines import engine_on
from tests.support.generations import KILLED

MANY, STEP = 12, 5


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_steps, "BATCH", STEP)


@pytest.mark.parametrize(("point", "hits"), [("locked", 2), ("committing", 1), ("committing", 2), ("committed", 2)])
def test_a_redrive_continues_where_the_killed_process_was(database_url: str, point: str, hits: int) -> None:
    with engine_on(database_url) as engine:
        engine.configure("mail", Policy(max_attempts=1))
        for _ in range(MANY):
            engine.submit("mail")
        for claimed in engine.claim(worker="w", limit=MANY):
            engine.fail(claimed, "no")
        started = engine.start_bulk("redrive")
        victim = fleet.start(do_bulk_steps_and_die, database_url, STEP, point, hits)
        fleet.end_all([victim], 60, exitcode=KILLED)
        before = engine.bulk(started.id)
        assert before.state == "running"
        # What it has counted is what it has done.
        assert len(engine.jobs(states=["queued"]).jobs) == before.done
        steps = engine.bulk_steps()
        while engine.bulk(started.id).state == "running":
            steps.step()
        done = engine.bulk(started.id)
        assert (done.state, done.done, done.repeated, done.refused) == ("done", MANY, 0, 0)
        assert len(engine.jobs(states=["queued"]).jobs) == MANY
        assert engine.dead_lines() == []
