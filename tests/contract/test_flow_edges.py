"""Flows at their edges: what meets in one moment, what comes twice, what is done halfway."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput, KeyReused
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.domain.flow_commands import CancelFlow, RejectStage
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.engine.flows import advance, bulk
from tests.support.cases import each_case
from tests.support.engines import must_verify


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
    monkeypatch.setattr(advance, "STEP", 2)
    monkeypatch.setattr(bulk, "OPEN_STEP", 2)


def test_a_stage_that_is_held_while_its_condition_is_decided_can_still_be_decided(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("ask"))])
    engine.wait_stage(flow.stages[0])
    must_verify(engine)
    engine.succeed(one(engine), True)
    assert states(engine, flow) == ["waiting"]
    engine.approve_stage(flow.stages[0])
    assert run_all(engine) == 1
    assert state(engine, flow) == "succeeded"


def test_the_time_to_approve_begins_when_the_condition_is_decided(engine: Engine, clock: VirtualClock) -> None:
    spec = StageSpec("b", [TaskSpec("x")], when=TaskSpec("ask"))
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), spec])
    engine.wait_stage(flow.stages[1], Approval(deadline_s=60, on_deadline="reject"))
    engine.succeed(one(engine))
    clock.advance(50)
    engine.succeed(one(engine), True)
    clock.advance(50)
    engine.sweep()
    assert states(engine, flow) == ["succeeded", "waiting"]
    clock.advance(11)
    engine.sweep()
    assert states(engine, flow) == ["succeeded", "failed"]


@each_case("outcome", ["approve", "reject", "skip", "cancel"])
def test_a_condition_that_takes_longer_than_the_approval_stops_no_janitor(
    engine: Engine, clock: VirtualClock, outcome: str
) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("ask", policy=Policy(lease_s=900)))])
    control = one(engine)
    engine.wait_stage(flow.stages[0], Approval(deadline_s=60, on_deadline=outcome))
    clock.advance(61)
    engine.sweep()
    assert states(engine, flow) == ["waiting"]
    engine.succeed(control, True)
    clock.advance(61)
    engine.sweep()
    run_all(engine)
    ended = {"approve": "succeeded", "reject": "failed", "skip": "succeeded", "cancel": "cancelled"}
    assert state(engine, flow) == ended[outcome]


def test_a_later_stage_that_waits_fails_only_when_its_turn_comes(engine: Engine, clock: VirtualClock) -> None:
    late = TaskSpec("x", policy=Policy(deadline_s=60))
    flow = engine.submit_flow(
        "f",
        [
            StageSpec("a", [TaskSpec("x", policy=Policy(lease_s=900))]),
            StageSpec("b", [late], start_as_waiting=True),
            StageSpec("c", [TaskSpec("x")]),
        ],
    )
    first = one(engine)
    clock.advance(61)
    engine.sweep()
    must_verify(engine)
    engine.succeed(first)
    assert states(engine, flow) == ["succeeded", "failed", "skipped"]
    assert state(engine, flow) == "failed"


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
    """A control task has no successor of its own, and a spawned one is made again by a spawner that runs again."""
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("ask"))])
    control = one(engine)
    engine.succeed(control, True)
    spawner = one(engine)
    engine.add_tasks(flow.stages[0], [TaskSpec("y")], spawned_by=spawner.id)
    spawned = one(engine)
    engine.fail(spawner, "no", reason_code="parse_error")
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
    assert run_all(engine) == 1


def test_cancelling_a_flow_that_ignores_failures_cancels_it(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], on_failure="ignore")])
    engine.cancel_flow(flow.id, hard=True)
    assert states(engine, flow) == ["cancelled"]
    assert state(engine, flow) == "cancelled"


def test_a_flow_whose_stages_were_all_skipped_before_it_was_opened_can_be_cancelled(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], start=False)
    engine.skip_stage(flow.stages[0])
    engine.cancel_flow(flow.id)
    assert state(engine, flow) == "cancelled"


def test_a_retry_of_a_retry_runs_a_carried_over_stage_again(engine: Engine) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x"), TaskSpec("x")], approval=Approval(owner="ann")),
        StageSpec("b", [TaskSpec("bad")]),
    ]
    flow = engine.submit_flow("f", stages)
    engine.approve_stage(flow.stages[0], actor_name="ann")
    run_all(engine, "bad")
    again = engine.retry_flow(flow.id)
    run_all(engine, "bad")
    whole = engine.retry_flow(again.id, from_stage="a")
    assert states(engine, whole) == ["waiting", "created"]
    assert engine.stage(whole.stages[0]).counts.total == 2
    engine.approve_stage(whole.stages[0], actor_name="ann")
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
    with pytest.raises(Conflict, match="deleted"):
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
    again = engine.retry_flow(flow.id, from_stage="c")
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


def test_no_stage_is_added_behind_one_that_has_stopped_the_flow(engine: Engine, small_steps: None) -> None:
    stages = [StageSpec("a", [TaskSpec("bad")]), StageSpec("b", [TaskSpec("x") for _ in range(7)])]
    flow = engine.submit_flow("f", stages)
    engine.fail(one(engine), "no", retryable=False)
    assert states(engine, flow) == ["failed", "created"]
    must_verify(engine)
    with pytest.raises(IllegalTransition):
        engine.add_stage(flow.id, StageSpec("c", [TaskSpec("x")]))
    while engine.sweep():
        must_verify(engine)
    assert states(engine, flow) == ["failed", "skipped"]
    assert state(engine, flow) == "failed"


def test_a_rejection_that_takes_many_steps_is_told_as_one(engine: Engine, small_steps: None) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x") for _ in range(7)], approval=Approval())])
    engine.reject_stage(flow.stages[0], note="too dear", actor_name="ann")
    assert states(engine, flow) == ["waiting"]
    while engine.sweep():
        must_verify(engine)
    (told,) = [e for e in engine.flow_events(flow.id) if e.state == "failed" and e.type.startswith("stage.")]
    assert (told.type, told.actor, told.cause) == ("stage.rejected", "user:ann", "too dear")


def test_a_rejected_stage_whose_flow_is_cancelled_meanwhile_is_cancelled(engine: Engine, small_steps: None) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x") for _ in range(7)], approval=Approval())])
    reject, cancel = engine.run([RejectStage(flow.stages[0]), CancelFlow(flow.id)])
    assert reject.ok
    assert cancel.ok
    while engine.sweep():
        must_verify(engine)
    assert states(engine, flow) == ["cancelled"]
    assert state(engine, flow) == "cancelled"


def test_a_clock_that_is_set_back_does_not_put_stages_out_of_order(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("x")])])
    first = one(engine)
    engine.start(first)
    clock.advance(-10)
    engine.succeed(first)
    must_verify(engine)
    clock.advance(10)
    engine.sweep()
    assert run_all(engine) == 1
    assert state(engine, flow) == "succeeded"


def test_a_retry_of_a_compensated_flow_does_again_what_was_undone(engine: Engine) -> None:
    stages = [
        StageSpec("plain", [TaskSpec("x")]),
        StageSpec("paid", [TaskSpec("pay")], compensate=TaskSpec("pay_back")),
        StageSpec("sent", [TaskSpec("send")]),
    ]
    flow = engine.submit_flow("order", stages)
    engine.succeed(engine.claim(worker="w")[0])
    engine.succeed(engine.claim(worker="w")[0])
    engine.fail(engine.claim(worker="w")[0], "no", retryable=False)
    engine.succeed(engine.claim(worker="w")[0])
    again = engine.retry_flow(flow.id)
    assert [s.state for s in engine.stages(again.id)] == ["succeeded", "pending", "created"]
    assert [a.kind for a in engine.claim(worker="w", limit=9)] == ["pay"]


def test_a_success_after_a_soft_cancel_counts_and_spawns_nothing(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b")])
    (held,) = engine.claim(worker="w")
    engine.cancel_flow(flow.id)
    assert engine.succeed(held, 1, spawn={"b": [TaskSpec("y")]}).state == "succeeded"
    assert [s.state for s in engine.stages(flow.id)] == ["succeeded", "cancelled"]
    assert engine.flow(flow.id).state == "cancelled"
    assert engine.progress(flow.id).counts.total == 1


def test_a_stage_of_a_cancelled_flow_names_who_cancelled_it(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    engine.cancel_flow(flow.id, actor_name="ann")
    actors = {e.type: e.actor for e in engine.flow_events(flow.id) if e.type.endswith(".cancelled")}
    assert actors == dict.fromkeys(("task.cancelled", "stage.cancelled", "flow.cancelled"), "user:ann")


def test_another_approval_under_the_same_key_is_another_body(engine: Engine) -> None:
    gate = StageSpec("a", [TaskSpec("x")], approval=Approval(owner="ann"))
    engine.submit_flow("f", [gate], idempotency_key="k")
    assert engine.submit_flow("f", [gate], idempotency_key="k").repeated
    with pytest.raises(KeyReused):
        engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], idempotency_key="k")


def test_cascades_of_one_sweep_share_one_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onetray.engine.flows.advance.STEP", 3)
    flows = [engine.submit_flow("f", [StageSpec("a", [TaskSpec("x") for _ in range(5)])]) for _ in range(3)]
    engine.run([CancelFlow(flow.id, hard=True) for flow in flows])
    left = [engine.progress(flow.id).counts.queued for flow in flows]
    assert sum(left) == 12
    assert engine.claim(worker="w", limit=20) == []
    while engine.sweep():
        pass
    assert [engine.flow(flow.id).state for flow in flows] == ["cancelled"] * 3
