"""Pausing a flow, and stages that wait for somebody: approve, reject, skip, or the deadline."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, last, run_all, tasks_of, types
from tests.support.listening import register
from tests.support.tasks import settle, take, written


def submit(engine: Engine, **fields: Any) -> Placed:
    """Two stages, the first of which may be given more."""
    return engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2, **fields), StageSpec("b", [TaskSpec("y")])])


def test_a_paused_flow_gives_out_nothing_until_it_is_resumed(engine: Engine) -> None:
    flow = submit(engine)
    assert engine.pause_flow(flow.id, actor_name="ann", cause="a fire").state == "paused"
    assert engine.pause_flow(flow.id).repeated
    assert run_all(engine) == []
    assert engine.resume_flow(flow.id, actor_name="bob").state == "pending"
    assert run_all(engine) == ["x", "x", "y"]
    own = [(e.type, e.actor, e.cause) for e in history(engine, flow) if e.type in ("flow.paused", "flow.resumed")]
    assert own == [("flow.paused", "user:ann", "a fire"), ("flow.resumed", "user:bob", None)]


def test_what_runs_while_a_flow_is_paused_finishes_and_counts(engine: Engine) -> None:
    flow = submit(engine)
    first, second = engine.claim(worker="w", limit=2)
    engine.start(first)
    engine.pause_flow(flow.id)
    engine.succeed(first)
    engine.succeed(second)
    assert how(engine, flow) == ["paused", "succeeded", "pending"]
    assert run_all(engine) == []
    assert engine.resume_flow(flow.id).state == "running"
    assert run_all(engine) == ["y"]
    assert how(engine, flow)[0] == "succeeded"


@each_case(("bad", "state"), [((), "succeeded"), (("x",), "failed")])
def test_a_paused_flow_ends_with_its_last_running_task(engine: Engine, bad: tuple[str, ...], state: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    held = take(engine)
    engine.pause_flow(flow.id)
    if bad:
        engine.fail(held, "no", retryable=False)
    else:
        engine.succeed(held)
    assert how(engine, flow) == [state, state]
    with pytest.raises(IllegalTransition):
        engine.resume_flow(flow.id)


def test_what_goes_back_to_the_queue_of_a_paused_flow_stays_there(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 5)])
    released, retried, expired, blocked, _ = engine.claim(worker="w", limit=5)
    engine.pause(blocked, owner="ann", reason="a question")
    engine.pause_flow(flow.id)
    engine.release(released)
    engine.fail(retried, "later")
    engine.start(expired)
    engine.resume(blocked.id)
    clock.advance(10_000)
    settle(engine)
    assert tasks_of(engine, flow.stages[0]) == ["queued"] * 5
    clock.advance(3600)
    settle(engine)
    assert run_all(engine) == []
    engine.resume_flow(flow.id)
    settle(engine)
    assert run_all(engine) == ["x"] * 5
    assert how(engine, flow)[0] == "succeeded"


def test_tasks_and_stages_added_to_a_paused_flow_wait_with_it(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", sealed=False)
    engine.pause_flow(flow.id)
    stage = engine.add_stage(flow.id, StageSpec("a", [TaskSpec("x", delay_s=5)]))
    engine.add_tasks(stage.id, [TaskSpec("y", priority=1)])
    clock.advance(10)
    settle(engine)
    assert run_all(engine) == []
    engine.resume_flow(flow.id)
    settle(engine)
    assert run_all(engine) == ["y", "x"]
    engine.seal_flow(flow.id)
    assert how(engine, flow) == ["succeeded", "succeeded"]


def test_a_task_whose_time_comes_while_its_flow_is_paused_waits_for_the_resume(
    engine: Engine, clock: VirtualClock
) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", delay_s=5)])])
    engine.pause_flow(flow.id)
    clock.advance(10)
    settle(engine)
    assert run_all(engine) == []
    engine.resume_flow(flow.id)
    settle(engine)
    assert run_all(engine) == ["x"]


def test_a_condition_is_not_decided_while_its_flow_is_paused(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("decide"))])
    engine.pause_flow(flow.id)
    assert run_all(engine) == []
    engine.resume_flow(flow.id)
    assert run_all(engine) == ["decide", "x"]


def test_pausing_refuses_what_the_table_does_not_allow(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], start=False)
    before = written(engine)
    for verb in (engine.pause_flow, engine.resume_flow):
        with pytest.raises(IllegalTransition) as refused:
            verb(flow.id)
        assert refused.value.facts["from"] == "created"
    with pytest.raises(IllegalTransition):
        engine.cancel_flow(flow.id, actor="worker")
    assert written(engine) == before


def test_a_flow_waits_while_all_that_is_open_waits_for_somebody(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)])
    one, two = engine.claim(worker="w", limit=2)
    engine.pause(one, owner="ann", reason="a question", state="waiting_input")
    assert how(engine, flow)[0] == "pending"
    engine.pause(two, owner="ann", reason="a question")
    assert how(engine, flow)[0] == "waiting"
    engine.pause_flow(flow.id)
    engine.resume_flow(flow.id)
    assert how(engine, flow)[0] == "waiting"
    engine.resume(one.id, input={"yes": 1})
    assert how(engine, flow)[0] == "pending"
    again = take(engine)
    assert again.input == {"yes": 1}
    engine.succeed(again)
    assert how(engine, flow)[0] == "waiting"
    engine.cancel(two.id)
    assert how(engine, flow) == ["succeeded", "succeeded"]


def test_a_stage_that_begins_waiting_opens_when_it_is_approved(engine: Engine) -> None:
    flow = submit(engine, start_as_waiting=True)
    assert how(engine, flow) == ["waiting", "waiting", "created"]
    assert run_all(engine) == []
    placed = engine.approve_stage(flow.stages[0], note="looks fine", actor_name="ann", input=[1])
    assert (placed.id, placed.state) == (flow.stages[0], "pending")
    assert engine.approve_stage(flow.stages[0]).repeated
    answer = engine.stage(flow.stages[0]).answer
    assert {k: answer[k] for k in ("by", "verdict", "note", "input")} == {
        "by": "user:ann", "verdict": "approved", "note": "looks fine", "input": [1],
    }  # fmt: skip
    approved = [e for e in history(engine, flow) if e.type == "stage.approved"]
    assert [(e.actor, e.cause, e.payload) for e in approved] == [("user:ann", "looks fine", answer)]
    assert run_all(engine) == ["x", "x", "y"]


def test_a_form_refuses_an_input_and_says_where(engine: Engine) -> None:
    form = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 9}}}
    flow = submit(engine, approval=Approval(owner="ann", form=form))
    before = written(engine)
    for value, said in ((None, "input"), ({}, "'n' is a required"), ({"n": 10}, "input/n"), ({"n": "x"}, "input/n")):
        with pytest.raises(InvalidInput, match=said) as refused:
            engine.approve_stage(flow.stages[0], input=value, actor_name="ann")
        assert refused.value.field == "input"
    assert written(engine) == before
    engine.approve_stage(flow.stages[0], input={"n": 3}, actor_name="ann")
    assert engine.stage(flow.stages[0]).answer["input"] == {"n": 3}


@each_case("ref", ["#", "https://example.org/form.json"])
def test_a_form_that_cannot_be_followed_refuses_every_input(engine: Engine, ref: str) -> None:
    flow = submit(engine, approval=Approval(form={"$ref": ref}))
    with pytest.raises(InvalidInput) as refused:
        engine.approve_stage(flow.stages[0], input="a")
    assert refused.value.field == "approval.form"
    assert engine.skip_stage(flow.stages[0]).state == "skipped"


def test_a_rejected_stage_fails_with_who_and_why(engine: Engine) -> None:
    flow = submit(engine, approval=Approval(owner="ann"))
    assert engine.reject_stage(flow.stages[0], note="too dear", actor_name="ann").state == "failed"
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    assert tasks_of(engine, flow.stages[0]) == ["cancelled"] * 2
    stage = engine.stage(flow.stages[0])
    assert stage.error["message"] == "rejected by user:ann: too dear"
    assert (stage.answer["verdict"], stage.answer["note"]) == ("rejected", "too dear")
    end = last(engine, flow, flow.stages[0])
    assert (end.type, end.actor, end.cause) == ("stage.rejected", "user:ann", "too dear")
    for verb in (engine.approve_stage, engine.reject_stage, engine.skip_stage, engine.wait_stage):
        with pytest.raises(IllegalTransition):
            verb(flow.stages[0])


@each_case(("policy", "end"), [("continue", "failed"), ("ignore", "succeeded")], ids=["continue", "ignore"])
def test_a_rejected_stage_is_passed_when_its_policy_says_so(engine: Engine, policy: str, end: str) -> None:
    flow = submit(engine, start_as_waiting=True, on_failure=policy)
    engine.reject_stage(flow.stages[0])
    assert run_all(engine) == ["y"]
    assert how(engine, flow) == [end, "failed", "succeeded"]


@pytest.mark.parametrize("when", ["from the start", "before its turn", "empty", "once more"])
def test_a_stage_that_waits_takes_tasks_and_starts_them_after_its_approval(engine: Engine, when: str) -> None:
    first = [] if when != "before its turn" else [StageSpec("first", [TaskSpec("f")])]
    own = [] if when == "empty" else [TaskSpec("own"), TaskSpec("own")]
    gate = StageSpec("gate", own, start_as_waiting=when != "once more", takes_more=False)
    flow = engine.submit_flow("f", [*first, gate], sealed=False)
    stage = flow.stages[-1]
    if when == "before its turn":
        engine.wait_stage(stage)
    elif when == "once more":
        engine.succeed(engine.claim(worker="w")[0])
        engine.wait_stage(stage)
    assert engine.stage(stage).state == "waiting"
    added = engine.add_tasks(stage, [TaskSpec("new"), TaskSpec("late", delay_s=0.001)]).tasks
    for task in engine.claim(worker="w", limit=10):
        assert task.kind == "f", "nothing of it starts before the approval"
        engine.succeed(task)
    counts = engine.stage(stage).counts
    assert counts.created == (0 if when == "once more" else len(own) + 2)
    engine.approve_stage(stage)
    register(engine)
    assert {b.code for b in engine.explain(added[0])} == set()
    assert added[0] in [task.id for task in engine.claim(worker="w", limit=10)]
    assert engine.task(added[1]).state == "queued"


def test_a_skipped_approval_goes_on_with_the_next_stage(engine: Engine) -> None:
    flow = submit(engine, start_as_waiting=True)
    engine.skip_stage(flow.stages[0], note="not needed", actor_name="bob")
    assert run_all(engine) == ["y"]
    assert how(engine, flow) == ["succeeded", "skipped", "succeeded"]
    assert engine.stage(flow.stages[0]).answer["by"] == "user:bob"


def test_nobody_approves_or_rejects_a_stage_before_its_turn(engine: Engine) -> None:
    stages = [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")], start_as_waiting=True)]
    flow = engine.submit_flow("f", stages)
    before = written(engine)
    for verb in (engine.approve_stage, engine.reject_stage):
        with pytest.raises(Conflict, match="turn of stage 'b'"):
            verb(flow.stages[1])
    with pytest.raises(IllegalTransition):
        engine.approve_stage(flow.stages[1], actor="worker")
    assert written(engine) == before
    assert run_all(engine) == ["x"]
    assert how(engine, flow) == ["waiting", "succeeded", "waiting"]
    engine.approve_stage(flow.stages[1])
    assert types(engine, flow, flow.id)[2:] == [
        "flow.started", "flow.waiting", "flow.proceeded", "flow.started",
    ]  # fmt: skip
    assert run_all(engine) == ["y"]


def test_a_stage_that_runs_can_be_held_and_let_go_again(engine: Engine) -> None:
    flow = submit(engine)
    held = take(engine)
    engine.start(held)
    gate = Approval(owner="ann", reason="is this right?")
    assert engine.wait_stage(flow.stages[0], gate, actor="worker", actor_name="w").state == "waiting"
    assert engine.wait_stage(flow.stages[0]).repeated
    assert run_all(engine) == []
    engine.succeed(held)
    assert how(engine, flow) == ["waiting", "waiting", "created"]
    assert engine.approve_stage(flow.stages[0], actor_name="ann").state == "running"
    assert how(engine, flow) == ["running", "running", "created"]
    assert run_all(engine) == ["x", "y"]


def test_a_held_stage_whose_tasks_have_all_ended_ends_when_it_is_approved(engine: Engine) -> None:
    flow = submit(engine)
    one, two = engine.claim(worker="w", limit=2)
    engine.wait_stage(flow.stages[0])
    engine.succeed(one)
    engine.succeed(two)
    assert how(engine, flow)[:2] == ["waiting", "waiting"]
    assert engine.approve_stage(flow.stages[0]).state == "succeeded"
    assert run_all(engine) == ["y"]
    assert how(engine, flow)[0] == "succeeded"


def test_a_failure_ends_a_held_strict_stage_without_anybody_approving(engine: Engine) -> None:
    flow = submit(engine)
    held = take(engine)
    engine.wait_stage(flow.stages[0])
    engine.fail(held, "no", retryable=False)
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    assert tasks_of(engine, flow.stages[0]) == ["failed", "cancelled"]


@each_case(("verb", "end"), [("reject_stage", "failed"), ("skip_stage", "skipped")])
def test_a_report_after_its_stage_was_answered_changes_no_parent(engine: Engine, verb: str, end: str) -> None:
    flow = submit(engine, on_failure="continue")
    held = take(engine)
    engine.start(held)
    engine.wait_stage(flow.stages[0])
    getattr(engine, verb)(flow.stages[0])
    assert how(engine, flow)[1:] == [end, "pending"]
    before = [e.id for e in history(engine, flow) if not e.type.startswith("task.")]
    assert engine.succeed(held).state == "succeeded"
    assert [e.id for e in history(engine, flow) if not e.type.startswith("task.")] == before
    assert run_all(engine) == ["y"]
