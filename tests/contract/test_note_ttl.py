"""Notes that would fill the log have a TTL, which the janitor keeps; transitions and other notes have none."""

from __future__ import annotations

import pytest

from onetray.config import EngineConfig
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine, retention
from onetray.engine.retention import OldNotes
from tests.support.engines import engine_on, must_verify
from tests.support.tasks import running, submit, take, types
from tests.support.waits import wait_until

LOUD = Policy(record_heartbeats=True, lease_s=10 * 86_400)
DAY = 86_400


def beaten(engine: Engine, clock: VirtualClock) -> str:
    """A task with a heartbeat that is a day old, a new one, and a note of another type."""
    id_ = submit(engine, policy=LOUD)
    held = running(engine)
    engine.beat(held)
    engine.set_priority(id_, 3)
    clock.advance(DAY + 1)
    engine.beat(held)
    return id_


LEFT = ["submitted", "claimed", "started", "priority_set", "heartbeat"]


def test_the_janitor_deletes_heartbeats_after_a_day(engine: Engine, clock: VirtualClock) -> None:
    id_ = beaten(engine, clock)
    assert types(engine, id_).count("heartbeat") == 2
    engine.janitor(every_s=0.01).start()
    wait_until(lambda: types(engine, id_).count("heartbeat") == 1)
    assert types(engine, id_) == LEFT


def test_the_ttl_and_the_types_are_settings(database_url: str, clock: VirtualClock) -> None:
    config = EngineConfig(note_types=("task.priority_set",), note_ttl_s=60)
    with engine_on(database_url, clock, config=config) as engine:
        id_ = beaten(engine, clock)
        engine.janitor(every_s=0.01).start()
        wait_until(lambda: "priority_set" not in types(engine, id_))
        assert types(engine, id_).count("heartbeat") == 2


def test_a_note_that_says_when_a_task_may_run_has_no_ttl(database_url: str) -> None:
    with (
        engine_on(database_url, config=EngineConfig(note_types=("task.rescheduled",))) as engine,
        pytest.raises(InvalidInput, match="rescheduled cannot be pruned"),
    ):
        engine.janitor()


def test_many_notes_go_in_steps(engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_LIMIT", 2)
    id_ = submit(engine, policy=LOUD)
    held = running(engine)
    for _ in range(5):
        engine.beat(held)
    clock.advance(11)
    notes = OldNotes(engine.store, ["task.heartbeat"], 10)
    assert [notes.step() for _ in range(4)] == [2, 2, 1, 0]
    assert "heartbeat" not in types(engine, id_)


def test_the_heartbeats_of_a_flows_task_go_from_the_flows_list_too(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", policy=LOUD)])])
    engine.beat(take(engine))
    clock.advance(11)
    before = len(engine.flow_events(flow.id))
    engine.prune_notes(["task.heartbeat"], 10)
    assert len(engine.flow_events(flow.id)) == before - 1
    must_verify(engine)
