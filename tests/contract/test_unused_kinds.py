"""Kinds that nothing uses go with retention, and no process writes one that is gone."""

from __future__ import annotations

import threading

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, unused_kinds
from onetray.engine.retention import Retention
from onetray.store import interned
from tests.support.engines import engine_on, must_verify
from tests.support.tasks import submit

HOUR, DAY = 3600, 86_400


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few kinds are many; a pass has several steps; caches are old at once, as they are after days."""
    for name, value in (("MANY", 3), ("SPAN", 2), ("BATCH", 2), ("PASS_KINDS", 4)):
        monkeypatch.setattr(unused_kinds, name, value)
    monkeypatch.setattr(interned, "MAX_AGE_S", -1.0)


def end_all(engine: Engine) -> None:
    while claimed := engine.claim(worker="w", limit=100):
        for task in claimed:
            engine.succeed(task)


def rounds(engine: Engine, clock: VirtualClock, walk: Retention, many: int = 3) -> None:
    """Let old jobs go, and then some passes over the kinds."""
    submit(engine, "newest", delay_s=1000 * DAY)
    for _ in range(many):
        clock.advance(HOUR)
        while walk.step() is not None:
            pass


def kinds(engine: Engine) -> dict[str, bool]:
    """The kinds, and whether each is retired."""
    rows = engine.store.read_sql("SELECT name, retired_at FROM onetray.kind")
    return {name: at is not None for name, at in rows}


def test_kinds_that_nothing_uses_are_retired_and_go_days_later(engine: Engine, clock: VirtualClock) -> None:
    for n in range(6):
        submit(engine, f"made-up-{n}")
    engine.submit_flow("flow-kind", [StageSpec("a", [TaskSpec("task-kind")])])
    engine.configure("configured", Policy(max_attempts=7))
    engine.open_breaker("broken", for_s=1)
    submit(engine, "open", delay_s=1000 * DAY)
    end_all(engine)
    kept = {"configured", "broken", "open", "newest"}
    walk = engine.retention(60)
    rounds(engine, clock, walk)
    assert {name for name, retired in kinds(engine).items() if not retired} == kept
    again = submit(engine, "made-up-0")
    assert not kinds(engine)["made-up-0"], "a submit takes it back"
    assert engine.task(again).kind == "made-up-0"
    clock.advance(unused_kinds.KEEP_RETIRED_S)
    rounds(engine, clock, walk)
    assert set(kinds(engine)) == {*kept, "made-up-0"}
    assert engine.task(submit(engine, "made-up-1")).kind == "made-up-1"
    with pytest.raises(NotFound):
        engine.close_breaker("made-up-2")


def test_few_kinds_stay(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_kinds, "MANY", 100)
    monkeypatch.setattr(unused_kinds, "PASS_KINDS", 100)
    for n in range(6):
        submit(engine, f"made-up-{n}")
    end_all(engine)
    rounds(engine, clock, engine.retention(60))
    assert list(kinds(engine).values()) == [False] * 7


def test_a_process_with_old_names_writes_no_kind_that_is_gone(database_url: str) -> None:
    clock = VirtualClock()
    with engine_on(database_url, clock) as one, engine_on(database_url, clock) as two:
        for engine in (one, two):
            for n in range(4):
                submit(engine, f"made-up-{n}")
        end_all(one)
        walk = one.retention(60)
        rounds(one, clock, walk)
        assert kinds(one)["made-up-0"]
        clock.advance(unused_kinds.KEEP_RETIRED_S)
        submit(two, "made-up-0", delay_s=DAY)
        rounds(one, clock, walk)
        assert set(kinds(one)) == {"made-up-0", "newest"}
        flow = two.submit_flow("made-up-1", [StageSpec("a", [TaskSpec("made-up-2")])])
        two.configure("made-up-3", Policy(max_attempts=2))
        assert [task.kind for task in one.claim(worker="w", kinds=("made-up-2",))] == ["made-up-2"]
        assert two.flow(flow.id).name == "made-up-1"
        must_verify(one)


def test_a_kind_that_is_retired_while_it_is_submitted_stays_in_use(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interned, "MAX_AGE_S", 60.0)
    # The clock runs ahead of the real age of the caches here.
    monkeypatch.setattr(unused_kinds, "KEEP_RETIRED_S", 10_000 * DAY)
    clock, broken = VirtualClock(), list[Exception]()
    with engine_on(database_url, clock) as one, engine_on(database_url, clock) as two:

        def submit_and_end() -> None:
            try:
                for n in range(40):
                    submit(two, f"made-up-{n % 6}")
                    assert two.claim(worker="w", kinds=(f"made-up-{n % 6}",))
                    two.cancel(two.tasks(limit=1)[0].id, hard=True)
            except Exception as e:
                broken.append(e)

        writer = threading.Thread(target=submit_and_end)
        writer.start()
        walk = one.retention(1)
        while writer.is_alive():
            clock.advance(HOUR)
            while walk.step() is not None:
                pass
        writer.join()
        assert not broken
        assert len(kinds(one)) == 6
