"""A janitor may be killed at any point of a fire: another one fires, and each fire time has exactly one job."""

from __future__ import annotations

import pytest

from onetray import failpoints
from onetray.domain.clock import SECOND, VirtualClock
from tests.support import fleet
from tests.support.dying_processes import fire_and_die
from tests.support.engines import engine_on
from tests.support.generations import KILLED
from tests.support.schedule_kills import run_kills

BEGAN, FIRES = 1_780_272_000, 5
POINTS = ("begun", *failpoints.SCHEDULE_POINTS, "committing", "committed")


@pytest.mark.parametrize("point", POINTS)
def test_each_fire_time_has_one_job_though_the_janitor_is_killed(database_url: str, point: str) -> None:
    clock = VirtualClock(BEGAN * SECOND)
    with engine_on(database_url, clock) as engine:
        engine.put_schedule("s", kind="mail", every_s=60, catch_up="all", overlap="queue_one")
        engine.put_schedule("t", kind="mail", every_s=60, catch_up="all")
        victim = fleet.start(fire_and_die, database_url, BEGAN * SECOND, FIRES, point, 3)
        fleet.end_all([victim], 60, exitcode=KILLED)
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
