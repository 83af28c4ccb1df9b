"""A process that carries out a bulk operation may be killed anywhere: another one continues, nothing is done twice."""

from __future__ import annotations

import multiprocessing

import pytest

from onetray.domain.policy import Policy
from onetray.engine import Engine, bulk_steps
from onetray.store import open_store
from tests.support.dying_processes import die_at
from tests.support.engines import engine_on

MANY, STEP = 12, 5


def work_and_die(url: str, point: str, hits: int) -> None:
    """Carry out steps until the point is hit so often."""
    bulk_steps.BATCH = STEP
    engine = Engine(open_store(url), seed=1)
    die_at(point, hits)
    steps = engine.bulk_steps()
    while True:
        steps.step()


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
        victim = multiprocessing.get_context("spawn").Process(target=work_and_die, args=(database_url, point, hits))
        victim.start()
        victim.join(60)
        assert victim.exitcode == -9
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
