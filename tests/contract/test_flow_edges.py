"""Flows at their edges: what meets in one moment, what comes twice, what is done halfway."""

from __future__ import annotations

import pytest

from onetray.clock import VirtualClock
from onetray.engine import Engine, cascade, course
from onetray.errors import Conflict, IllegalTransition, InvalidInput
from onetray.flowmodel import Approval, Placed, StageSpec, TaskSpec
from onetray.model import Assignment


def run_all(engine: Engine, *failing: str) -> int:
    """Run what can be claimed to its end; answers how many."""
    done = 0
    while claimed := engine.claim(worker="w", limit=100):
        for task in claimed:
            done += 1
            if task.kind in failing:
                engine.fail(task, "no", retryable=False)
            else:
                engine.succeed(task, True)
    return done


def states(engine: Engine, flow: Placed) -> list[str]:
    return [stage.state for stage in engine.stages(flow.id)]


def state(engine: Engine, flow: Placed) -> str:
    return engine.flow(flow.id).state


def one(engine: Engine) -> Assignment:
    (claimed,) = engine.claim(worker="w")
    return claimed


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "STEP", 2)
    monkeypatch.setattr(cascade, "OPENED_AT_ONCE", 2)


def test_a_dependency_that_is_named_twice_is_met_once(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="first")])])
    engine.add_tasks(flow.stages[0], [TaskSpec("x", depends_on=("first", flow.tasks[0]))])
    assert run_all(engine) == 2
    assert state(engine, flow) == "succeeded"


def test_nothing_can_depend_on_a_control_task(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("ask"))])
    control = one(engine)
    with pytest.raises(InvalidInput, match="no such task"):
        engine.add_tasks(flow.stages[0], [TaskSpec("x", depends_on=(control.id,))])
    engine.succeed(control, True)
    assert run_all(engine) == 1
    assert state(engine, flow) == "succeeded"


def test_a_redrive_that_is_refused_makes_no_flow(engine: Engine) -> None:
    """A control task has no successor of its own, and a spawned one is made again by its spawner."""
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("ask"))])
    control = one(engine)
    engine.succeed(control, True)
    spawner = one(engine)
    engine.succeed(spawner, spawn={"a": [TaskSpec("y")]})
    spawned = one(engine)
    engine.fail(spawned, "no", reason_code="parse_error")
    assert state(engine, flow) == "failed"
    for task in (control, spawned):
        with pytest.raises(IllegalTransition):
            engine.redrive(task.id)
    assert len(engine.flows()) == 1


def test_a_successor_that_failed_too_is_redriven_with_its_flow(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])], roll_up="drain")
    first, other = engine.claim(worker="w", limit=2)
    engine.fail(first, "no", reason_code="parse_error")
    engine.redrive(first.id)
    second = one(engine)
    engine.fail(second, "no", reason_code="parse_error")
    engine.succeed(other)
    assert state(engine, flow) == "failed"
    new = engine.redrive(second.id)
    assert engine.redrive(second.id).id == new.id
    assert len(engine.flows()) == 2
    assert run_all(engine) == 2


def test_a_retry_of_a_retry_runs_a_carried_over_stage_again(engine: Engine) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x"), TaskSpec("x")], approval=Approval(owner="ann")),
        StageSpec("b", [TaskSpec("bad")]),
    ]
    flow = engine.submit_flow("f", stages)
    engine.approve_stage(flow.stages[0])
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    whole = engine.retry_flow(again.id, from_stage="a")
    assert states(engine, whole) == ["waiting", "created"]
    assert engine.stage(whole.stages[0]).counts.total == 2
    engine.approve_stage(whole.stages[0])
    assert run_all(engine) == 3
    assert state(engine, whole) == "succeeded"


def test_a_retry_of_a_retry_leaves_to_the_spawner_what_it_spawned(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b")])
    engine.succeed(one(engine), spawn={"b": [TaskSpec("bad")]})
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    whole = engine.retry_flow(again.id, from_stage="a")
    assert [s.counts.total for s in engine.stages(whole.id)] == [1, 0]


def test_a_retry_from_a_stage_whose_tasks_were_pruned_is_refused(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("bad")])])
    run_all(engine, "bad")
    clock.advance(100)
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    assert len(engine.prune(50)) == 1
    with pytest.raises(Conflict, match="pruned"):
        engine.retry_flow(again.id, from_stage="a")
    assert run_all(engine) == 0
    engine.retry_flow(again.id, from_stage="b")
    assert run_all(engine) == 1


def test_a_stage_that_was_skipped_is_not_undone_when_its_retry_fails(engine: Engine) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x")], compensate=TaskSpec("undo_a")),
        StageSpec("b", [TaskSpec("x")], compensate=TaskSpec("undo_b"), start_as_waiting=True),
        StageSpec("c", [TaskSpec("bad")]),
    ]
    flow = engine.submit_flow("f", stages)
    engine.skip_stage(flow.stages[1])
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    undoing = engine.flow(again.id).compensation
    assert undoing is not None
    assert [s.name for s in engine.stages(undoing)] == ["a"]


def test_metrics_that_outgrow_a_whole_number_go_on_as_a_fraction(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("x")])])
    for task in engine.claim(worker="w", limit=2):
        engine.succeed(task, metrics={"n": 2**63, "f": 1e308})
    assert engine.stage(flow.stages[0]).metrics["n"] == pytest.approx(2.0**64)
    assert state(engine, flow) == "succeeded"
