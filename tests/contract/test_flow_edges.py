"""Flows at their edges: what meets in one moment, what comes twice, what is done halfway."""

from __future__ import annotations

import pytest

from onetray.engine import Engine, cascade, course
from onetray.errors import InvalidInput
from onetray.flowmodel import Placed, StageSpec, TaskSpec
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
