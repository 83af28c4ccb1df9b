"""Processes on one SQLite file whose clocks differ or are set back: the rules hold, what is abandoned is taken over."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path

import pytest

from onetray.config import EngineConfig
from onetray.domain.clock import SECOND, SystemClock, VirtualClock
from onetray.engine import Engine
from tests.cli.run import called
from tests.support import fleet
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.sqlite_processes import OffClock, die_with_a_claim, submit_and_finish, url_of

HOUR_S = 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def test_processes_whose_clocks_are_an_hour_apart_keep_the_rules_together(path: Path) -> None:
    done = fleet.run_all(submit_and_finish, [(str(path), off_s) for off_s in (-HOUR_S, 0.0, HOUR_S)], 60)
    with engine_on(url_of(path)) as engine:
        tasks = engine.tasks(limit=1000)
        assert {t.id for t in tasks} == {id_ for ids in done for id_ in ids}
        assert {t.state for t in tasks} == {"succeeded"}
        times = [e.ts for e in engine.feed.read(0, 10_000).events]
        assert all(a <= b for a, b in pairwise(times)), "the log goes back in time"


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
def test_what_a_dead_worker_held_is_taken_over_though_its_clock_was_wrong(path: Path, off_s: float) -> None:
    with engine_on(url_of(path)) as engine:
        job = engine.submit("mail").id or ""
        fleet.end_all([fleet.start(die_with_a_claim, str(path), off_s)], 30, exitcode=1)
        assert engine.task(job).state == "assigned"
        engine.janitor(every_s=0.05).start()
        wait_until(lambda: engine.claim(worker="other"), 30)
        assert engine.task(job).fence == 2


def test_a_process_that_comes_later_takes_over_too(path: Path) -> None:
    with engine_on(url_of(path)) as engine:
        job = engine.submit("mail").id or ""
    fleet.end_all([fleet.start(die_with_a_claim, str(path), HOUR_S)], 30, exitcode=1)
    with engine_on(url_of(path)) as engine:
        engine.janitor(every_s=0.05).start()
        wait_until(lambda: engine.task(job).state == "queued", 30)


def test_a_clock_that_steps_back_holds_nothing_up_and_is_right_again_in_time(path: Path) -> None:
    clock = VirtualClock()
    with engine_on(url_of(path), clock) as engine:
        engine.submit("mail")
        clock.advance(-HOUR_S)
        job = engine.submit("mail", delay_s=90).id or ""
        claimed = engine.claim(worker="w", lease_s=90)
        assert len(claimed) == 1
        clock.advance(99)
        engine.sweep()
        assert engine.task(job).run_at > engine.now()  # It goes a tenth slower, to be caught up with.
        clock.advance(2)
        engine.sweep()
        assert len(engine.claim(worker="w", limit=5)) == 2
        clock.advance(10 * HOUR_S)
        assert engine.now() == clock.now()


def test_a_claim_is_never_dated_before_its_task_was_due(path: Path) -> None:
    clock = VirtualClock()
    with engine_on(url_of(path), clock) as engine:
        job = engine.submit("mail", delay_s=600).id or ""
        with Engine.open(url_of(path), clock=VirtualClock(clock.now() + int(HOUR_S) * SECOND)) as ahead:
            ahead.sweep()  # It makes the task claimable, and no event tells when.
        (claimed,) = engine.claim(worker="w")
        assert claimed.id == job
        assert engine.events(job)[-1].ts >= engine.task(job).run_at
        assert claimed.lease_expires_at >= engine.task(job).run_at


def test_a_clock_that_is_behind_the_database_is_told_of_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Engine.open(url_of(path), clock=OffClock(HOUR_S)) as ahead:
        ahead.submit("mail")
    caplog.set_level(logging.WARNING, "onetray.store")
    with engine_on(url_of(path)) as engine:
        for _ in range(3):
            engine.submit("mail")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "onetray.store"]
    assert "3600 s behind" in line or "3599 s behind" in line
    assert line.count("+00:00") == 2, "it names both times"


def test_a_clock_within_the_setting_is_not_told_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Engine.open(url_of(path), clock=OffClock(HOUR_S)) as ahead:
        ahead.submit("mail")
    with Engine.open(url_of(path), config=EngineConfig(clock_skew_s=2 * HOUR_S)) as engine:
        engine.submit("mail")
        assert engine.now() - SystemClock().now() > 0.9 * HOUR_S * SECOND
    assert not [r for r in caplog.records if r.name == "onetray.store"]


def test_doctor_says_that_the_clock_is_behind_the_database(path: Path) -> None:
    with Engine.open(url_of(path), clock=OffClock(HOUR_S)) as ahead:
        ahead.submit("mail")
    found = json.loads(called("doctor", "--database", url_of(path), "--json").stdout)
    (clock,) = [c for c in found["checks"] if c["name"] == "clock"]
    assert (clock["verdict"], "ahead of this host" in clock["said"]) == ("warn", True)
    assert "a tenth slower" in clock["next_step"]
