"""Schedules in the code of apps: deploys, versions beside each other, and schedules that are gone from the code."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import DeclaredInCode, InvalidInput
from onetray.domain.lifecycle import ABOUT_SCHEDULES
from onetray.domain.schedule import ScheduleSpec
from onetray.engine import Engine
from onetray.engine.schedule_api import ORPHAN_S
from tests.support.engines import engine_on
from tests.support.tasks import submit

HOUR = 3_600


@pytest.fixture
def clock() -> VirtualClock:
    """Begins on a full hour."""
    return VirtualClock(1_780_272_000 * SECOND)


def spec(name: str = "s", **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(name=name, **{"kind": "mail", "every_s": HOUR, **fields})


def types(engine: Engine) -> list[str]:
    return [e.type for e in engine.feed.read(0, 10_000).events if e.type in ABOUT_SCHEDULES]


def sweep(engine: Engine) -> None:
    while engine.fire_schedules():
        pass


def test_an_app_declares_its_schedules_and_a_person_cannot_change_them(engine: Engine, clock: VirtualClock) -> None:
    assert engine.declare_schedules([spec()], app="shop", worker="w1") == []
    shown = engine.schedule("s")
    assert (shown.source, shown.app, shown.created_by, shown.state) == ("code", "shop", "worker:w1", "active")
    with pytest.raises(DeclaredInCode, match="in the code of the app shop: change it there, or pause it here"):
        engine.put_schedule("s", kind="mail", every_s=60)
    engine.pause_schedule("s", by="ann")
    # A deploy does not resume it.
    engine.declare_schedules([spec(every_s=60)], app="shop")
    assert (engine.schedule("s").state, engine.schedule("s").every_s) == ("paused", 60)
    assert engine.resume_schedule("s").next_fire_at == clock.now() + 60 * SECOND


def test_two_versions_that_are_deployed_in_turns_lose_and_repeat_nothing(engine: Engine, clock: VirtualClock) -> None:
    """The one that started last defines the schedule; each deploy comes between two fire times."""
    expressions = ({"every_s": 60}, {"every_s": None, "cron": "*/5 * * * *"})
    expected: list[int] = []
    for n in range(30):
        engine.declare_schedules([spec(**expressions[n % 2], catch_up="all")], app="shop", worker=f"w{n}")
        began = clock.now()
        clock.advance(150)
        period = (60, 300)[n % 2] * SECOND
        expected += range((began // period + 1) * period, clock.now() + 1, period)
    sweep(engine)
    assert [fire.fire_at for fire in engine.schedule_fires("s", limit=1_000)][::-1] == expected
    assert {fire.outcome for fire in engine.schedule_fires("s", limit=1_000)} == {"submitted"}


def test_a_name_that_a_person_has_added_is_not_taken_over(engine: Engine) -> None:
    engine.put_schedule("s", kind="mail", every_s=60)
    assert engine.declare_schedules([spec(), spec("t")], app="shop") == ["s"]
    assert [(line.name, line.source) for line in engine.schedules()] == [("s", "operator"), ("t", "code")]


def test_a_changed_expression_is_deployed_without_losing_or_repeating_a_fire(
    engine: Engine, clock: VirtualClock
) -> None:
    engine.declare_schedules([spec(catch_up="all")], app="shop")
    clock.advance(2 * HOUR)
    engine.declare_schedules([spec(catch_up="all", every_s=1_800)], app="shop")
    sweep(engine)
    times = [fire.fire_at for fire in engine.schedule_fires("s")][::-1]
    assert times == [clock.now() - HOUR * SECOND, clock.now()]
    assert engine.schedule("s").next_fire_at == clock.now() + 1_800 * SECOND
    assert types(engine) == ["schedule.created", "schedule.changed"]


def test_two_versions_beside_each_other_do_not_replace_each_other(engine: Engine, clock: VirtualClock) -> None:
    old, new = [spec()], [spec(every_s=60)]
    engine.declare_schedules(old, app="shop")
    clock.advance(30)
    engine.declare_schedules(new, app="shop")
    for _ in range(5):
        clock.advance(60)
        engine.declare_schedules(old, app="shop", renew=True)
        engine.declare_schedules(new, app="shop", renew=True)
    assert engine.schedule("s").every_s == 60
    # An instance of the old version starts again: it started last. When it is gone, the new version returns.
    engine.declare_schedules(old, app="shop")
    engine.declare_schedules(new, app="shop", renew=True)
    assert engine.schedule("s").every_s == HOUR
    for _ in range(int(ORPHAN_S / 60) + 1):
        clock.advance(60)
        engine.declare_schedules(new, app="shop", renew=True)
    assert engine.schedule("s").every_s == 60
    assert types(engine) == ["schedule.created", *["schedule.changed"] * 3]


def test_a_schedule_that_is_gone_from_the_code_is_orphaned_and_not_fired(engine: Engine, clock: VirtualClock) -> None:
    engine.declare_schedules([spec(), spec("other")], app="shop")
    # Another version still runs, and still declares it.
    for _ in range(20):
        clock.advance(60)
        engine.declare_schedules([spec("other")], app="shop", renew=True)
        engine.declare_schedules([spec(), spec("other")], app="shop", renew=True)
    assert engine.schedule("s").state == "active"
    for _ in range(int(ORPHAN_S / 60) + 1):
        clock.advance(60)
        engine.declare_schedules([], app="another app")
        engine.declare_schedules([spec("other")], app="shop", renew=True)
    gone = engine.schedule("s")
    assert (gone.state, gone.orphaned_at is not None) == ("orphaned", True)
    assert "the app shop no longer declares it" in engine.explain_schedule("s").reasons[0]
    clock.advance(2 * HOUR)
    sweep(engine)
    assert (engine.schedule_fires("s"), len(engine.schedule_fires("other"))) == ([], 2)
    # It is back: as after a downtime.
    engine.declare_schedules([spec(), spec("other")], app="shop")
    sweep(engine)
    assert engine.schedule("s").state == "active"
    assert [fire.outcome for fire in engine.schedule_fires("s")] == ["submitted", "skipped_missed"]
    assert types(engine).count("schedule.orphaned") == 1


def test_a_schedule_fires_while_no_worker_of_its_app_runs(engine: Engine, clock: VirtualClock) -> None:
    engine.declare_schedules([spec()], app="shop")
    for _ in range(3):
        clock.advance(HOUR)
        sweep(engine)
    assert (engine.schedule("s").state, len(engine.schedule_fires("s"))) == ("active", 3)


def test_an_app_without_schedules_writes_nothing(engine: Engine) -> None:
    submit(engine)
    before = engine.store.tail()
    assert engine.declare_schedules([], app="shop") == []
    assert engine.schedules() == []
    assert engine.store.tail() == before


def test_a_schedule_that_has_ended_may_stay_in_the_code(engine: Engine, clock: VirtualClock) -> None:
    over = spec("over", ends_at=clock.now() - 1)
    assert engine.declare_schedules([over, spec()], app="shop") == []
    assert [(line.name, line.state) for line in engine.schedules()] == [("over", "ended"), ("s", "active")]
    engine.declare_schedules([spec("over"), spec(ends_at=clock.now())], app="shop")
    assert [(line.name, line.state) for line in engine.schedules()] == [("over", "active"), ("s", "ended")]


def test_bad_declarations_are_refused(engine: Engine) -> None:
    for bad in (None, [1], [spec(every_s=0)], [spec(cron="no", every_s=None)], [spec(str(i)) for i in range(1_001)]):
        with pytest.raises(InvalidInput):
            engine.declare_schedules(bad, app="shop")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        engine.declare_schedules([spec()], app="")
    assert engine.schedules() == []


def test_workers_that_start_at_once_declare_a_schedule_once(engine: Engine) -> None:
    together = threading.Barrier(4)

    def declare() -> None:
        together.wait()
        engine.declare_schedules([spec(), spec("t")], app="shop")

    threads = [threading.Thread(target=declare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert types(engine) == ["schedule.created"] * 2


FIRES = 240


def test_janitors_of_several_processes_fire_each_time_once(database_url: str, clock: VirtualClock) -> None:
    """Two servers and eight workers, each with an engine of its own. `./go soak schedules` has the full size."""
    with engine_on(database_url, clock) as engine:
        engine.put_schedule("s", kind="mail", every_s=1, catch_up="all")
        clock.advance(FIRES)
        problems: list[BaseException] = []

        def fire() -> None:
            try:
                with Engine.open(database_url, clock=clock) as janitor:
                    while (janitor.schedule("s").next_fire_at or 0) <= clock.now():
                        janitor.fire_schedules()
            except BaseException as e:
                problems.append(e)

        threads = [threading.Thread(target=fire) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        fires = engine.schedule_fires("s", limit=1_000)
        assert [fire.fire_at for fire in fires] == [clock.now() - n * SECOND for n in range(FIRES)]
        assert len({fire.job for fire in fires}) == len(engine.jobs(limit=1_000).jobs) == FIRES
