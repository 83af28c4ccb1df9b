"""Why a task of a flow is not running, and what a stage or a flow waits for."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import NotFound
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.domain.task import Blocker
from onetray.engine import Engine
from tests.support.listening import register


@pytest.fixture
def engine(engine: Engine) -> Engine:
    """Somebody listens. What is explained if nobody does: test_explain_workers.py."""
    register(engine)
    return engine


def codes(found: list[Blocker]) -> list[str]:
    return [b.code for b in found]


def run_all(engine: Engine) -> None:
    while claimed := engine.claim(worker="w", limit=100):
        for task in claimed:
            engine.succeed(task, True)


def test_a_task_of_an_open_stage_has_nothing_in_its_way(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    assert engine.explain(flow.tasks[0]) == []
    assert [t.id for t in engine.claim(worker="w")] == [flow.tasks[0]]
    assert codes(engine.explain(flow.tasks[0])) == ["assigned"]


def test_a_task_of_a_later_stage_waits_for_those_before(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")])])
    (blocker,) = engine.explain(flow.tasks[1])
    assert blocker.code == "stage_not_open"
    assert blocker.facts == {"stage": "b", "order": 2, "current": "a", "current_state": "pending"}
    (of_stage,) = engine.explain(flow.stages[1])
    assert of_stage.code == "stage_not_open"
    engine.succeed(engine.claim(worker="w")[0])
    assert engine.explain(flow.tasks[1]) == []


def test_a_dependency_is_named_with_its_state(engine: Engine) -> None:
    tasks = [TaskSpec("x", name="first"), TaskSpec("x", name="second", depends_on=("first",))]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    (blocker,) = engine.explain(flow.tasks[1])
    assert blocker.code == "dependency"
    assert blocker.facts["dependencies"] == [{"id": flow.tasks[0], "name": "first", "state": "queued"}]
    engine.succeed(engine.claim(worker="w")[0])
    assert engine.explain(flow.tasks[1]) == []


def test_a_paused_flow_says_who_paused_it(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.pause_flow(flow.id, actor_name="bob")
    (blocker,) = engine.explain(flow.tasks[0])
    assert (blocker.code, blocker.held_by) == ("flow_paused", "user:bob")
    for found in (blocker, engine.explain(flow.id)[0]):
        assert (found.code, found.facts["command"]) == ("flow_paused", f"onetray jobs resume {flow.id}")
        assert found.message.endswith(f"was paused by user:bob: resume it, `onetray jobs resume {flow.id}`")
    engine.resume_flow(flow.id)
    assert engine.explain(flow.tasks[0]) == []


def test_a_stage_that_waits_says_who_has_to_approve_it_and_until_when(engine: Engine, clock: VirtualClock) -> None:
    gate = Approval(owner="ann", reason="needs a second pair of eyes", deadline_s=60)
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], approval=gate)])
    for asked in (flow.id, flow.stages[0], flow.tasks[0]):
        (blocker,) = engine.explain(asked)
        assert (blocker.code, blocker.held_by) == ("stage_waiting", "ann")
        assert blocker.ends_at == clock.now() + 60_000_000
        command = f"onetray stages approve {flow.id}/a"
        assert (blocker.facts["command"], blocker.message) == (
            command, f"stage 'a' needs a second pair of eyes: ann has to approve it, `{command}`",
        )  # fmt: skip


def test_the_command_of_an_approval_can_be_pasted_and_asks_for_the_input_of_a_form(engine: Engine) -> None:
    gate = Approval(owner="ann", form={"type": "object"})
    flow = engine.submit_flow("f", [StageSpec("final check", [TaskSpec("x")], approval=gate)])
    assert engine.explain(flow.id)[0].facts["command"] == f"onetray stages approve '{flow.id}/final check' --input JSON"


def test_a_condition_that_is_being_decided_names_its_control_task(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    (control,) = engine.claim(worker="w")
    (blocker,) = engine.explain(flow.stages[0])
    assert (blocker.code, blocker.facts["task"]) == ("condition", control.id)
    assert codes(engine.explain(flow.tasks[0])) == ["condition"]
    engine.succeed(control, True)
    assert engine.explain(flow.tasks[0]) == []


def test_a_flow_that_was_not_opened_says_so(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], start=False)
    assert codes(engine.explain(flow.id)) == ["flow_not_opened"]
    assert codes(engine.explain(flow.tasks[0])) == ["flow_not_opened", "stage_not_open"]
    engine.open_flow(flow.id)
    assert engine.explain(flow.tasks[0]) == []


def test_an_open_ended_flow_says_that_more_may_come(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    assert codes(engine.explain(flow.id)) == ["open_ended"]
    stage = engine.add_stage(flow.id, StageSpec("a"))
    assert codes(engine.explain(flow.id)) == codes(engine.explain(stage.id)) == ["open_ended"]
    engine.add_tasks(stage.id, [TaskSpec("x")])
    assert codes(engine.explain(flow.id)) == ["pending"]
    run_all(engine)
    assert codes(engine.explain(flow.id)) == ["open_ended"]
    engine.seal_flow(flow.id)
    assert codes(engine.explain(flow.id)) == ["succeeded"]


def test_a_flow_that_stands_still_names_the_tasks_that_somebody_holds(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="one")])])
    engine.pause(engine.claim(worker="w")[0], owner="zed", reason="needs a key")
    (blocker,) = engine.explain(flow.id)
    assert (blocker.code, blocker.held_by, blocker.facts) == (
        "blocked", "zed", {"task": flow.tasks[0], "command": f"onetray jobs resume {flow.tasks[0]}"},
    )  # fmt: skip


def test_a_delayed_task_of_a_later_stage_gives_both_reasons(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y", delay_s=60)])])
    assert codes(engine.explain(flow.tasks[1])) == ["stage_not_open", "delayed"]
    engine.succeed(engine.claim(worker="w")[0])
    assert codes(engine.explain(flow.tasks[1])) == ["delayed"]
    clock.advance(61)
    engine.sweep()
    assert engine.explain(flow.tasks[1]) == []


def test_what_has_ended_is_over(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    run_all(engine)
    assert codes(engine.explain(flow.id)) == codes(engine.explain(flow.stages[0])) == ["succeeded"]


def test_an_id_that_nothing_has_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFound, match="no task, stage or flow"):
        engine.explain("00000000-0000-7000-8000-000000000000")
