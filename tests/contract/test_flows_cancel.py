"""Cancelling a flow: softly, hard, twice, in steps; and what late reports are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, LeaseLost
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.engine.flows import advance, bulk
from tests.support.cases import each_case
from tests.support.engines import must_verify
from tests.support.flows import history, how, last, run_all, tasks_of, types
from tests.support.tasks import settle, take, written


def three(engine: Engine, **fields: Any) -> Placed:
    """The first of three stages has four tasks."""
    stages = [StageSpec("a", [TaskSpec("x")] * 4), StageSpec("b", [TaskSpec("y")] * 2), StageSpec("c", [TaskSpec("z")])]
    return engine.submit_flow("f", stages, **fields)


def test_a_soft_cancel_ends_what_nobody_holds_and_asks_the_others_to_stop(engine: Engine) -> None:
    flow = three(engine)
    first, second = engine.claim(worker="w", limit=2)
    engine.start(first)
    placed = engine.cancel_flow(flow.id, actor_name="ann", cause="a mistake")
    assert placed.state == "running"
    assert how(engine, flow) == ["running", "running", "cancelled", "cancelled"]
    assert tasks_of(engine, flow.stages[0]) == ["running", "assigned", "cancelled", "cancelled"]
    assert set(engine.beat(first).cancel) == {first.id, second.id}
    assert run_all(engine) == []
    assert engine.succeed(first, 1).state == "succeeded"
    assert how(engine, flow)[:2] == ["running", "running"]
    assert engine.fail(second, "stopped").state == "cancelled"
    assert how(engine, flow) == ["cancelled"] * 4
    asked = [e for e in history(engine, flow) if e.type == "flow.cancel_requested"]
    assert [(e.actor, e.cause, e.version, e.payload) for e in asked] == [
        ("user:ann", "a mistake", None, {"hard": False})
    ]
    end = last(engine, flow, flow.id)
    assert (end.type, end.actor, end.cause) == ("flow.cancelled", "user:ann", "a mistake")


def test_after_the_grace_a_soft_cancel_takes_the_tasks_away(engine: Engine, clock: VirtualClock) -> None:
    tasks = [TaskSpec("x", policy=Policy(cancel_grace_s=5, lease_s=1000, heartbeat_s=600))]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    held = take(engine)
    engine.start(held)
    engine.cancel_flow(flow.id)
    clock.advance(4)
    settle(engine)
    assert how(engine, flow) == ["running", "running"]
    clock.advance(2)
    settle(engine)
    assert how(engine, flow) == ["cancelled", "cancelled"]
    with pytest.raises(IllegalTransition):
        engine.succeed(held)


def test_a_success_in_the_grace_that_completes_the_flow_counts(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    held = take(engine)
    engine.cancel_flow(flow.id)
    engine.succeed(held, 7)
    assert how(engine, flow) == ["succeeded", "succeeded"]
    assert engine.stage(flow.stages[0]).result == [7]


def test_a_success_in_the_grace_of_a_flow_with_more_to_do_does_not_save_it(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")])])
    held = take(engine)
    engine.cancel_flow(flow.id)
    engine.succeed(held, 7)
    assert how(engine, flow) == ["cancelled", "succeeded", "cancelled"]
    assert run_all(engine) == []


def test_a_hard_cancel_ends_everything_at_once_with_one_event_each(engine: Engine) -> None:
    flow = three(engine)
    first, second = engine.claim(worker="w", limit=2)
    engine.start(first)
    engine.pause(second, owner="ann", reason="a question")
    assert engine.cancel_flow(flow.id, hard=True, actor_name="ann").state == "cancelled"
    assert how(engine, flow) == ["cancelled"] * 4
    ends = [e for e in history(engine, flow) if e.type.endswith(".cancelled")]
    assert len(ends) == len({e.entity_id for e in ends}) == 1 + 3 + 7
    assert {e.actor for e in ends if e.type != "stage.cancelled"} == {"user:ann"}
    assert run_all(engine) == []


LATE: dict[str, Callable[[Engine, Assignment], object]] = {
    "start": lambda e, a: e.start(a),
    "succeed": lambda e, a: e.succeed(a, 1),
    "succeed with more": lambda e, a: e.succeed(a, 1, metrics={"n": 1}, spawn={"b": [TaskSpec("x")]}),
    "fail": lambda e, a: e.fail(a, "no"),
    "release": lambda e, a: e.release(a),
    "pause": lambda e, a: e.pause(a, owner="ann", reason="a question"),
    "beat": lambda e, a: e.beat(a),
    "log": lambda e, a: e.log(a, "a line"),
}


@each_case("report", LATE)
def test_a_late_report_is_told_so_and_changes_nothing(engine: Engine, report: str) -> None:
    flow = three(engine)
    held = take(engine)
    engine.cancel_flow(flow.id, hard=True)
    before = written(engine)
    with pytest.raises((IllegalTransition, LeaseLost)):
        LATE[report](engine, held)
    assert written(engine) == before


def test_cancelling_softly_twice_is_the_same_as_once(engine: Engine) -> None:
    flow = three(engine)
    engine.start(take(engine))
    engine.cancel_flow(flow.id)
    before = written(engine)
    assert engine.cancel_flow(flow.id).repeated
    assert written(engine) == before


def test_a_hard_cancel_after_a_soft_one_does_not_wait_for_the_grace(engine: Engine) -> None:
    flow = three(engine)
    held = take(engine)
    engine.start(held)
    engine.cancel_flow(flow.id, actor_name="ann", cause="slowly")
    placed = engine.cancel_flow(flow.id, hard=True, actor_name="bob", cause="now")
    assert (placed.state, placed.repeated) == ("cancelled", False)
    assert how(engine, flow) == ["cancelled"] * 4
    asked = [(e.actor, e.payload) for e in history(engine, flow) if e.type == "flow.cancel_requested"]
    assert asked == [("user:ann", {"hard": False}), ("user:bob", {"hard": True})]
    assert (last(engine, flow, held.id).actor, last(engine, flow, held.id).cause) == ("user:bob", "now")


def test_a_flow_that_has_ended_cannot_be_cancelled(engine: Engine) -> None:
    flow = three(engine)
    run_all(engine)
    before = written(engine)
    for hard in (False, True):
        with pytest.raises(IllegalTransition) as refused:
            engine.cancel_flow(flow.id, hard=hard)
        assert refused.value.facts["from"] == "succeeded"
    assert written(engine) == before


@each_case("hard", [False, True])
@each_case("where", ["created", "pending", "paused", "waiting", "deciding", "empty"])
def test_a_flow_can_be_cancelled_wherever_it_stands(engine: Engine, where: str, hard: bool) -> None:
    stage = StageSpec(
        "a", [TaskSpec("x")],
        approval=Approval() if where == "waiting" else None, when=TaskSpec("c") if where == "deciding" else None,
    )  # fmt: skip
    flow = engine.submit_flow("f", [] if where == "empty" else [stage], start=where != "created")
    if where == "paused":
        engine.pause_flow(flow.id)
    assert engine.cancel_flow(flow.id, hard=hard).state == "cancelled"
    assert set(how(engine, flow)) == {"cancelled"}
    assert run_all(engine) == []
    history(engine, flow)


def test_nothing_may_be_done_to_a_flow_that_is_being_cancelled(engine: Engine) -> None:
    flow = three(engine)
    take(engine)
    engine.cancel_flow(flow.id)
    before = written(engine)
    for refused in (
        lambda: engine.pause_flow(flow.id),
        lambda: engine.open_flow(flow.id),
        lambda: engine.seal_flow(flow.id),
        lambda: engine.add_stage(flow.id, StageSpec("d")),
        lambda: engine.add_tasks(flow.stages[0], [TaskSpec("x")]),
        lambda: engine.wait_stage(flow.stages[0]),
        lambda: engine.seal_stage(flow.stages[0]),
        lambda: engine.append_context(flow.id, 1),
        lambda: engine.retry_flow(flow.id),
    ):
        with pytest.raises(IllegalTransition):
            refused()
    assert written(engine) == before


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks are cancelled, and two let go, in one transaction."""
    monkeypatch.setattr(bulk, "STEP", 3)
    monkeypatch.setattr(advance, "STEP", 3)
    monkeypatch.setattr(bulk, "OPEN_STEP", 2)


def steps(engine: Engine, flow: Placed) -> list[int]:
    """How many tasks are open after each step, until the flow has ended. In between nothing can be claimed."""
    left = [engine.progress(flow.id).counts.total]
    while engine.flow(flow.id).state != "cancelled":
        counts = engine.progress(flow.id).counts
        left.append(counts.total - counts.done)
        assert engine.claim(worker="late", limit=100) == []
        must_verify(engine)
        if not engine.sweep():
            break
    return left


@pytest.mark.usefixtures("small_steps")
@each_case("hard", [False, True])
def test_a_large_cancel_goes_in_steps_and_nothing_is_claimable_in_between(engine: Engine, hard: bool) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 10), StageSpec("b", [TaskSpec("y")] * 4)])
    settle(engine)
    placed = engine.cancel_flow(flow.id, hard=hard)
    assert (placed.state, placed.ending) == ("pending", "cancelled")
    shown = [engine.flow(flow.id), *engine.stages(flow.id), *engine.find_stages(limit=2).stages]
    assert {(s.ending, s.ending_how) for s in shown} == {("cancelled", "hard" if hard else "soft")}
    assert [(job.state, job.ending) for job in engine.jobs(limit=1).jobs] == [("pending", "cancelled")]
    assert {b.code for id_ in (flow.id, *flow.stages, flow.tasks[-1]) for b in engine.explain(id_)} == {"being_ended"}
    assert steps(engine, flow) == [14, 11, 8, 5, 2]
    assert {s.ending for s in (engine.flow(flow.id), *engine.stages(flow.id), *engine.jobs(limit=1).jobs)} == {None}
    assert how(engine, flow) == ["cancelled"] * 3
    ends = [e.entity_id for e in history(engine, flow) if e.type == "task.cancelled"]
    assert len(ends) == len(set(ends)) == 14


@pytest.mark.usefixtures("small_steps")
def test_a_large_soft_cancel_asks_in_steps_and_ends_with_the_last_report(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 10)])
    settle(engine)
    held = engine.claim(worker="w", limit=5)
    engine.cancel_flow(flow.id)
    settle(engine)
    assert tasks_of(engine, flow.stages[0]) == ["assigned"] * 5 + ["cancelled"] * 5
    assert len(engine.beat(held[0]).cancel) == 5
    for task in held:
        assert how(engine, flow)[0] in ("pending", "running")
        engine.release(task)
    assert how(engine, flow) == ["cancelled", "cancelled"]


@pytest.mark.usefixtures("small_steps")
def test_a_hard_cancel_overtakes_a_soft_one_between_two_steps(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 10)])
    settle(engine)
    held = engine.claim(worker="w", limit=4)
    engine.cancel_flow(flow.id)
    engine.cancel_flow(flow.id, hard=True)
    settle(engine)
    assert how(engine, flow) == ["cancelled", "cancelled"]
    assert tasks_of(engine, flow.stages[0]) == ["cancelled"] * 10
    with pytest.raises(IllegalTransition):
        engine.succeed(held[0])


@pytest.mark.usefixtures("small_steps")
def test_a_report_between_two_steps_of_a_hard_cancel_counts(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 10)])
    settle(engine)
    held = engine.claim(worker="w", limit=10)
    engine.cancel_flow(flow.id, hard=True)
    assert engine.succeed(held[9]).state == "succeeded"
    settle(engine)
    assert how(engine, flow) == ["cancelled", "cancelled"]
    assert tasks_of(engine, flow.stages[0]) == ["cancelled"] * 9 + ["succeeded"]


@pytest.mark.usefixtures("small_steps")
def test_a_large_strict_stage_fails_in_steps(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 10), StageSpec("b", [TaskSpec("y")] * 5)])
    engine.fail(take(engine), "no", retryable=False)
    assert engine.stage(flow.stages[0]).ending == "failed"
    assert engine.claim(worker="w", limit=100) == []
    must_verify(engine)
    settle(engine)
    assert how(engine, flow) == ["failed", "failed", "skipped"]
    assert types(engine, flow, flow.stages[0]).count("stage.failed") == 1


@pytest.mark.usefixtures("small_steps")
def test_a_large_stage_opens_in_steps_and_a_pause_stops_them(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 7)])
    assert len(engine.claim(worker="w", limit=100)) == 2
    engine.sweep()
    engine.pause_flow(flow.id)
    settle(engine)
    assert engine.claim(worker="w", limit=100) == []
    engine.resume_flow(flow.id)
    must_verify(engine)
    settle(engine)
    assert len(engine.claim(worker="w", limit=100)) == 5
