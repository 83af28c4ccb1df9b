"""What the walks through flows have found, each as the shortest way to it."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Succeed, ticket
from onetray.domain.errors import IllegalTransition
from onetray.domain.flow import Approval, More, StageSpec, TaskSpec
from onetray.domain.flow_commands import CancelFlow, SkipStage
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.property.flow_twins import small_steps
from tests.support.cases import each_case
from tests.support.engines import must_verify

PLAIN = Policy(max_attempts=2, jitter=False, backoff_base_s=10, backoff_max_s=10, lease_s=60)


def drain(engine: Engine, result: object = True) -> None:
    while claimed := engine.claim(worker="w", limit=50):
        for assignment in claimed:
            engine.succeed(assignment, result)


def states(engine: Engine, flow: str) -> list[str]:
    return [engine.flow(flow).state, *(stage.state for stage in engine.stages(flow))]


def test_a_condition_is_decided_though_its_stage_was_told_to_wait(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("when"))])
    engine.wait_stage(flow.stages[0])
    drain(engine)
    engine.approve_stage(flow.stages[0])
    drain(engine)
    assert states(engine, flow.id) == ["succeeded", "succeeded"]


def test_the_time_to_approve_a_stage_begins_when_its_condition_is_decided(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("when"))])
    engine.wait_stage(flow.stages[0], Approval(deadline_s=10))
    clock.advance(20)
    engine.sweep()
    drain(engine)
    clock.advance(9)
    engine.sweep()
    assert states(engine, flow.id) == ["waiting", "waiting"]
    clock.advance(1)
    engine.sweep()
    assert states(engine, flow.id) == ["failed", "failed"]


def test_a_flow_takes_no_stage_while_it_is_being_stopped(engine: Engine) -> None:
    later = StageSpec("b", [TaskSpec("x") for _ in range(5)])
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], start_as_waiting=True), later])
    with small_steps(2):
        engine.reject_stage(flow.stages[0])
        with pytest.raises(IllegalTransition):
            engine.add_stage(flow.id, StageSpec("c", [TaskSpec("x")]))
        while engine.sweep():
            pass
    assert states(engine, flow.id) == ["failed", "failed", "skipped"]


def test_a_task_whose_time_came_while_its_flow_was_paused_is_claimable_when_it_is_resumed(
    engine: Engine, clock: VirtualClock
) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", delay_s=10)])])
    engine.pause_flow(flow.id)
    clock.advance(20)
    engine.resume_flow(flow.id)
    must_verify(engine)
    assert [a.id for a in engine.claim(worker="w")] == list(flow.tasks)


def test_a_condition_whose_time_came_while_its_flow_was_paused_is_claimable_when_it_is_resumed(
    engine: Engine, clock: VirtualClock
) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("when", policy=PLAIN))])
    engine.fail(engine.claim(worker="w")[0], "no")
    engine.pause_flow(flow.id)
    clock.advance(20)
    engine.resume_flow(flow.id)
    must_verify(engine)
    assert [a.kind for a in engine.claim(worker="w")] == ["when"]


def test_a_flow_without_stages_that_was_never_opened_is_cancelled(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=True, start=False)
    engine.cancel_flow(flow.id)
    assert states(engine, flow.id) == ["cancelled"]


def test_a_flow_whose_stages_were_all_skipped_before_it_was_opened_is_cancelled(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], start=False)
    engine.skip_stage(flow.stages[0])
    engine.cancel_flow(flow.id)
    assert states(engine, flow.id) == ["cancelled", "skipped"]


@each_case("start", [False, True])
def test_a_cancelled_flow_is_cancelled_though_the_failures_of_its_stages_are_ignored(
    engine: Engine, start: bool
) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], on_failure="ignore")], start=start)
    engine.cancel_flow(flow.id)
    assert states(engine, flow.id) == ["cancelled", "cancelled"]


def test_a_task_may_spawn_one_that_depends_on_itself_or_on_one_that_ends_beside_it(engine: Engine) -> None:
    tasks = [
        TaskSpec("x", name="one"),
        TaskSpec("x", name="two"),
        TaskSpec("x", name="three", depends_on=("one", "two")),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    one, two = engine.claim(worker="w", limit=5)
    new = TaskSpec("x", name="new", depends_on=("one", "two"))
    more = More(spawn={"a": [new]})
    assert [v.error for v in engine.run([Succeed(**ticket(one), more=more), Succeed(**ticket(two))])] == [None, None]
    assert [a.kind for a in engine.claim(worker="w", limit=5)] == ["x", "x"]
    assert states(engine, flow.id) == ["running", "running"]


def test_a_task_that_fails_before_its_stage_has_its_turn_stops_the_flow_there(
    engine: Engine, clock: VirtualClock
) -> None:
    late = StageSpec("b", [TaskSpec("x", policy=PLAIN.with_(deadline_s=5))], start_as_waiting=True)
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), late, StageSpec("c", [TaskSpec("x")])])
    clock.advance(6)
    engine.sweep()
    assert states(engine, flow.id) == ["pending", "pending", "waiting", "created"]
    engine.succeed(engine.claim(worker="w")[0])
    assert states(engine, flow.id) == ["failed", "succeeded", "failed", "skipped"]


def test_a_stage_that_is_still_being_skipped_is_counted_as_what_it_ends_as(engine: Engine) -> None:
    later = StageSpec("b", [TaskSpec("x") for _ in range(4)])
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), later])
    with small_steps(3):
        engine.run([SkipStage(flow.stages[1]), CancelFlow(flow.id)])
    while engine.sweep():
        pass
    found = engine.flow(flow.id)
    assert states(engine, flow.id) == ["cancelled", "cancelled", "cancelled"]
    assert (found.cancelled, found.skipped) == (2, 0)
