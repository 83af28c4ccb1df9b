"""Deadlines of approvals and of whole flows."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, LeaseLost
from onetray.domain.flow import Approval, StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, last, run_all, tasks_of, types
from tests.support.tasks import settle, take

OUTCOMES = {
    "reject": ["failed", "failed", "skipped"],
    "approve": ["pending", "pending", "created"],
    "skip": ["pending", "skipped", "pending"],
    "cancel": ["cancelled", "cancelled", "cancelled"],
}


@each_case("outcome", OUTCOMES)
def test_an_approval_that_nobody_gives_ends_as_it_declares(engine: Engine, clock: VirtualClock, outcome: str) -> None:
    gate = Approval(owner="ann", deadline_s=60, on_deadline=outcome, form={"type": "object"})
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], approval=gate), StageSpec("b", [TaskSpec("y")])])
    assert engine.stage(flow.stages[0]).due_at == clock.now() + 60_000_000
    clock.advance(59)
    settle(engine)
    assert how(engine, flow)[0] == "waiting"
    clock.advance(2)
    settle(engine)
    assert how(engine, flow) == OUTCOMES[outcome]
    if outcome != "cancel":
        answer = engine.stage(flow.stages[0]).answer
        assert (answer["by"], answer["note"]) == ("system:janitor", "nobody answered in 60 s")
    end = [e for e in history(engine, flow) if e.entity_id == flow.stages[0] and e.version is not None][2]
    assert end.actor in ("system:janitor", "system:engine")
    run_all(engine)
    history(engine, flow)


def test_the_time_to_approve_begins_with_the_turn_of_the_stage(engine: Engine, clock: VirtualClock) -> None:
    gate = Approval(deadline_s=60)
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")], approval=gate)])
    clock.advance(1000)
    settle(engine)
    assert engine.stage(flow.stages[1]).due_at is None
    run_all(engine)
    assert engine.stage(flow.stages[1]).due_at == clock.now() + 60_000_000
    engine.approve_stage(flow.stages[1])
    assert engine.stage(flow.stages[1]).due_at is None
    clock.advance(100)
    settle(engine)
    assert run_all(engine) == ["y"]
    assert how(engine, flow) == ["succeeded"] * 3


def test_a_stage_held_twice_keeps_to_its_newest_deadline(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.wait_stage(flow.stages[0], Approval(deadline_s=10))
    engine.approve_stage(flow.stages[0])
    clock.advance(5)
    engine.wait_stage(flow.stages[0], Approval(deadline_s=100, on_deadline="skip"))
    clock.advance(50)
    settle(engine)
    assert how(engine, flow) == ["waiting", "waiting"]
    clock.advance(51)
    settle(engine)
    assert how(engine, flow) == ["succeeded", "skipped"]


def test_holding_a_stage_lets_its_condition_be_decided(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    engine.wait_stage(flow.stages[0])
    assert run_all(engine, answer=lambda _: True) == ["decide"]
    assert how(engine, flow) == ["waiting", "waiting"]
    engine.approve_stage(flow.stages[0])
    assert run_all(engine) == ["x"]


def test_a_conditional_stage_that_was_held_early_keeps_its_deadline(engine: Engine, clock: VirtualClock) -> None:
    stages = [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")], when=TaskSpec("decide"))]
    flow = engine.submit_flow("f", stages)
    engine.wait_stage(flow.stages[1], Approval(deadline_s=60))
    clock.advance(1000)
    settle(engine)
    assert run_all(engine, answer=lambda _: True) == ["x", "decide"]
    assert how(engine, flow) == ["waiting", "succeeded", "waiting"]
    clock.advance(61)
    settle(engine)
    assert how(engine, flow) == ["failed", "succeeded", "failed"]


def test_a_condition_and_an_approval_are_asked_one_after_the_other(engine: Engine, clock: VirtualClock) -> None:
    gate = Approval(owner="ann", deadline_s=60, on_deadline="approve")
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"), approval=gate)])
    assert how(engine, flow) == ["pending", "created"]
    clock.advance(1000)
    settle(engine)
    assert run_all(engine, answer=lambda _: True) == ["decide"]
    assert how(engine, flow)[1] == "waiting"
    clock.advance(61)
    settle(engine)
    assert run_all(engine) == ["x"]
    assert how(engine, flow) == ["succeeded", "succeeded"]


def test_a_flow_past_its_deadline_fails_with_all_that_is_open(engine: Engine, clock: VirtualClock) -> None:
    stages = [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")] * 3), StageSpec("c", [TaskSpec("z")])]
    flow = engine.submit_flow("f", stages, deadline_s=10)
    assert engine.flow(flow.id).deadline_at == clock.now() + 10_000_000
    engine.succeed(take(engine))
    held, blocked = engine.claim(worker="w", limit=2)
    engine.start(held)
    engine.pause(blocked, owner="ann", reason="a question")
    clock.advance(9)
    settle(engine)
    assert how(engine, flow)[0] == "running"
    clock.advance(2)
    settle(engine)
    assert how(engine, flow) == ["failed", "succeeded", "failed", "skipped"]
    assert tasks_of(engine, flow.stages[1]) == ["cancelled"] * 3
    assert types(engine, flow, flow.id)[-1] == "flow.timed_out"
    assert "timed out" in engine.flow(flow.id).error["message"]
    assert last(engine, flow, flow.id).actor == "system:engine"
    before = history(engine, flow)
    with pytest.raises((LeaseLost, IllegalTransition)):
        engine.succeed(held)
    assert history(engine, flow) == before


@each_case("where", ["created", "pending", "paused", "waiting", "empty"])
def test_a_deadline_ends_a_flow_wherever_it_stands(engine: Engine, clock: VirtualClock, where: str) -> None:
    stages = [] if where == "empty" else [StageSpec("a", [TaskSpec("x")], start_as_waiting=where == "waiting")]
    flow = engine.submit_flow("f", stages, deadline_s=10, start=where != "created")
    if where == "paused":
        engine.pause_flow(flow.id)
    assert how(engine, flow)[0] == ("pending" if where == "empty" else where)
    clock.advance(11)
    settle(engine)
    assert how(engine, flow)[0] == "failed"
    assert all(state in ("failed", "skipped") for state in how(engine, flow)[1:])
    assert run_all(engine) == []
    history(engine, flow)


def test_a_deadline_does_nothing_to_a_flow_that_has_ended(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], deadline_s=10)
    run_all(engine)
    before = history(engine, flow)
    clock.advance(11)
    settle(engine)
    assert history(engine, flow) == before


def test_a_deadline_in_the_grace_of_a_soft_cancel_ends_the_flow_at_once(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], deadline_s=10)
    held = take(engine)
    clock.advance(9)
    engine.cancel_flow(flow.id)
    clock.advance(2)
    settle(engine)
    assert how(engine, flow) == ["failed", "failed"]
    with pytest.raises((LeaseLost, IllegalTransition)):
        engine.succeed(held)
    history(engine, flow)
