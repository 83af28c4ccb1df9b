"""A janitor may be killed at any point of a fire: another one fires, and each fire time has exactly one job."""

from __future__ import annotations

import multiprocessing

import pytest

from onetray import failpoints
from onetray.domain.clock import SECOND, VirtualClock
from onetray.engine import Engine
from onetray.store import open_store
from tests.support.dying_processes import die_at
from tests.support.engines import engine_on
from tests.support.schedule_kills import run_kills

BEGAN, FIRES = 1_780_272_000, 5
POINTS = ("begun", *failpoints.SCHEDULE_POINTS, "committing", "committed")


def fire_and_die(url: str, point: str, hits: int) -> None:
    """Fire one time after the other until the point is hit so often."""
    clock = VirtualClock(BEGAN * SECOND)
    engine = Engine(open_store(url, clock), seed=1)
    die_at(point, hits)
    for _ in range(FIRES):
        clock.advance(60)
        engine.fire_schedules()


@pytest.mark.parametrize("point", POINTS)
def test_each_fire_time_has_one_job_though_the_janitor_is_killed(database_url: str, point: str) -> None:
    clock = VirtualClock(BEGAN * SECOND)
    with engine_on(database_url, clock) as engine:
        engine.put_schedule("s", kind="mail", every_s=60, catch_up="all", overlap="queue_one")
        engine.put_schedule("t", kind="mail", every_s=60, catch_up="all")
        victim = multiprocessing.get_context("spawn").Process(target=fire_and_die, args=(database_url, point, 3))
        victim.start()
        victim.join(60)
        assert victim.exitcode == -9
        clock.advance(60 * FIRES)
        while engine.fire_schedules():
            pass
        for name, expected in (
            ("s", ["submitted", "queued", *["skipped_overlap"] * (FIRES - 2)]), ("t", ["submitted"] * FIRES),
        ):  # fmt: skip
            fires = engine.schedule_fires(name)[::-1]
            assert [fire.fire_at for fire in fires] == [(BEGAN + 60 * n) * SECOND for n in range(1, FIRES + 1)]
            assert [fire.outcome for fire in fires] == expected
            jobs = engine.jobs(labels={"schedule": name}).jobs
            assert sorted(job.id for job in jobs) == sorted(fire.job for fire in fires if fire.job)


def test_servers_and_workers_are_killed_while_they_fire(database_url: str) -> None:
    """Real processes; `./go soak schedules` does it for 10,000 fire times."""
    seen = run_kills(database_url, fires=200, servers=2, workers=3, step=4, seed=1, limit_s=100)
    assert not seen.faults, (seen.faults, str(seen))
