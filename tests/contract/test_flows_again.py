"""Running a flow again: retry from a stage, redrive of a member, and compensation."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, NameTaken, NotFound
from onetray.domain.flow import Approval, Placed, StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, run_all, tasks_of, types
from tests.support.tasks import settle, take, written


def failed(engine: Engine, **fields: Any) -> Placed:
    """A flow whose second of three stages has failed."""
    stages = [
        StageSpec("a", [TaskSpec("x", 1)] * 2),
        StageSpec("b", [TaskSpec("bad", 2)]),
        StageSpec("c", [TaskSpec("z")]),
    ]
    flow = engine.submit_flow("f", stages, **fields)
    run_all(engine, bad={"bad"})
    assert how(engine, flow) == ["failed", "succeeded", "failed", "skipped"]
    return flow


def test_a_retry_carries_over_what_was_done_and_runs_the_rest(engine: Engine) -> None:
    flow = failed(engine, data={"k": 1}, metadata=[1], correlation_id="c-1", context={"n": 1})
    before = history(engine, flow)
    again = engine.retry_flow(flow.id, actor_name="ann")
    assert how(engine, again) == ["pending", "succeeded", "pending", "created"]
    assert len(again.tasks) == 2
    new, carried = engine.flow(again.id), engine.stage(again.stages[0])
    assert (new.retry_of, new.data, new.metadata, new.correlation_id) == (flow.id, {"k": 1}, [1], "c-1")
    context = engine.context(again.id)
    assert context is not None
    assert context.payload == {"n": 1}
    assert (carried.carried_from, carried.result) == (flow.stages[0], ["x", "x"])
    assert types(engine, again, again.stages[0]) == ["stage.added", "stage.carried_over"]
    assert run_all(engine) == ["bad", "z"]
    assert how(engine, again) == ["succeeded"] * 4
    assert [engine.task(t).retry_of for t in again.tasks] == list(flow.tasks[2:])
    assert engine.inputs(again.tasks[0])["stages"] == {"a": ["x", "x"]}
    assert history(engine, flow) == before


@each_case(("stage", "ran"), [("a", ["x", "x", "bad", "z"]), ("b", ["bad", "z"]), ("c", ["z"])])
def test_a_retry_begins_at_the_stage_that_is_named(engine: Engine, stage: str, ran: list[str]) -> None:
    flow = failed(engine)
    again = engine.retry_flow(flow.id, from_stage=stage)
    assert run_all(engine) == ran
    assert how(engine, again)[0] == "succeeded"


def test_a_retry_refuses_a_flow_that_has_not_ended_and_a_stage_that_it_does_not_have(engine: Engine) -> None:
    open_flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    before = written(engine)
    with pytest.raises(IllegalTransition, match="has not ended"):
        engine.retry_flow(open_flow.id)
    engine.cancel_flow(open_flow.id)
    with pytest.raises(NotFound, match="'nowhere'"):
        engine.retry_flow(open_flow.id, from_stage="nowhere")
    assert len(written(engine)["flow"]) == len(before["flow"])


def test_a_cancelled_or_succeeded_flow_can_be_retried_too(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")])])
    engine.succeed(take(engine))
    engine.cancel_flow(flow.id)
    again = engine.retry_flow(flow.id)
    assert run_all(engine) == ["y"]
    assert how(engine, again) == ["succeeded"] * 3
    assert engine.retry_flow(again.id, from_stage="b").state == "pending"
    assert run_all(engine) == ["y"]


def test_a_retry_of_a_retry_from_a_stage_that_was_carried_over_runs_its_tasks(engine: Engine) -> None:
    gate = StageSpec("a", [TaskSpec("x", 1), TaskSpec("x", 2)], when=TaskSpec("decide"), approval=Approval())
    flow = engine.submit_flow("f", [gate, StageSpec("b", [TaskSpec("bad")])])
    run_all(engine, answer=lambda _: True)
    engine.approve_stage(flow.stages[0])
    run_all(engine, bad={"bad"})
    second = engine.retry_flow(flow.id)
    run_all(engine, bad={"bad"})
    third = engine.retry_flow(second.id, from_stage="a")
    assert how(engine, third) == ["pending", "created", "created"]
    assert run_all(engine, answer=lambda _: True) == ["decide"]
    engine.approve_stage(third.stages[0])
    assert run_all(engine) == ["x", "x", "bad"]
    assert [t.payload for t in engine.stage_tasks(third.stages[0]) if not t.control] == [1, 2]
    assert how(engine, third) == ["succeeded"] * 3


def test_tasks_that_are_spawned_again_are_not_copied_too(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b"), StageSpec("c", [TaskSpec("bad")])])
    engine.succeed(take(engine), spawn={"b": [TaskSpec("y"), TaskSpec("y")]})
    run_all(engine, bad={"bad"})
    whole = engine.retry_flow(flow.id, from_stage="a")
    assert len(whole.tasks) == 2
    engine.succeed(take(engine), spawn={"b": [TaskSpec("y")]})
    assert run_all(engine) == ["y", "bad"]
    assert how(engine, whole)[0] == "succeeded"
    later = engine.retry_flow(flow.id, from_stage="b")
    assert run_all(engine) == ["y", "y", "bad"]
    assert how(engine, later)[0] == "succeeded"


def test_a_retry_keeps_the_names_and_dependencies_among_what_runs_again(engine: Engine) -> None:
    tasks = [
        TaskSpec("last", name="last", depends_on=("first", "before")),
        TaskSpec("first", name="first"),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("before", name="before")]), StageSpec("b", tasks)])
    assert run_all(engine, bad={"first"}) == ["before", "first"]
    again = engine.retry_flow(flow.id)
    assert [engine.task(t).name for t in again.tasks] == ["last", "first"]
    assert [engine.task(t).unmet for t in again.tasks] == [1, 0]
    assert run_all(engine) == ["first", "last"]
    assert how(engine, again)[0] == "succeeded"


def test_a_retry_begins_its_deadline_and_its_approvals_anew(engine: Engine, clock: VirtualClock) -> None:
    stages = [StageSpec("a", [TaskSpec("bad")], approval=Approval(deadline_s=60))]
    flow = engine.submit_flow("f", stages, deadline_s=1000)
    engine.approve_stage(flow.stages[0])
    run_all(engine, bad={"bad"})
    clock.advance(5000)
    again = engine.retry_flow(flow.id)
    assert how(engine, again) == ["waiting", "waiting"]
    assert engine.flow(again.id).deadline_at == clock.now() + 1_000_000_000
    assert engine.stage(again.stages[0]).due_at == clock.now() + 60_000_000


def test_redriving_a_member_of_an_open_stage_adds_its_successor_there(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", 1), TaskSpec("y")])], roll_up="drain")
    held, other = engine.claim(worker="w", limit=2)
    engine.fail(held, "no", reason_code="parse_error")
    receipt = engine.redrive(held.id)
    assert receipt.id is not None
    new = engine.task(receipt.id)
    assert (new.retry_of, new.stage_id, new.job_id, new.payload) == (held.id, flow.stages[0], flow.id, 1)
    assert engine.dead_letters(held.id)[0].successor_id == new.id
    assert engine.redrive(held.id).id == new.id
    counts = engine.stage(flow.stages[0]).counts
    assert (counts.total, counts.redriven, counts.dead_lettered) == (3, 1, 0)
    engine.succeed(other)
    assert run_all(engine) == ["x"]
    assert how(engine, flow) == ["succeeded", "succeeded"]


def test_a_member_that_has_succeeded_is_not_run_again_while_its_flow_goes_on(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])])
    held, other = engine.claim(worker="w", limit=2)
    engine.succeed(held, 1, partial=True)
    with pytest.raises(IllegalTransition, match="it has succeeded, and its flow goes on"):
        engine.redrive(held.id)
    engine.succeed(other)
    assert how(engine, flow) == ["partial", "partial"]


def test_redriving_a_member_of_a_flow_that_has_ended_retries_the_flow(engine: Engine) -> None:
    flow = failed(engine)
    receipt = engine.redrive(flow.tasks[2])
    assert receipt.id is not None
    new = engine.task(receipt.id)
    again = engine.flow(new.job_id)
    assert (again.retry_of, new.retry_of) == (flow.id, flow.tasks[2])
    assert run_all(engine) == ["bad", "z"]
    assert how(engine, again.id) == ["succeeded"] * 4


def test_redriving_a_successor_in_a_flow_that_has_ended_retries_the_flow_once(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("y")])], roll_up="drain")
    held, other = engine.claim(worker="w", limit=2)
    engine.fail(held, "no", reason_code="parse_error")
    second = engine.redrive(held.id).id or ""
    engine.fail(take(engine), "no", reason_code="parse_error")
    engine.succeed(other)
    assert how(engine, flow) == ["failed", "failed"]
    third = engine.redrive(second).id or ""
    assert engine.task(third).retry_of == held.id
    assert engine.redrive(second).id == third
    assert len(engine.flows()) == 2
    assert run_all(engine) == ["x"]


def test_a_task_that_will_be_spawned_again_cannot_be_redriven_alone(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    spawner = take(engine)
    engine.add_tasks(flow.stages[0], [TaskSpec("y")], spawned_by=spawner.id)
    spawned = take(engine)
    engine.fail(spawner, "no", reason_code="parse_error")
    engine.fail(spawned, "no", reason_code="parse_error")
    assert how(engine, flow) == ["failed", "failed"]
    before = written(engine)
    with pytest.raises(IllegalTransition, match="the task that spawned it would spawn it again"):
        engine.redrive(spawned.id)
    assert written(engine) == before


def test_a_control_task_cannot_be_redriven_alone(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], when=TaskSpec("bad"))])
    control = take(engine)
    engine.fail(control, "no", reason_code="parse_error")
    assert how(engine, flow) == ["failed", "failed"]
    before = written(engine)
    with pytest.raises(IllegalTransition, match="retry the flow"):
        engine.redrive(control.id)
    assert written(engine) == before


def test_a_member_whose_stage_is_over_in_an_open_flow_is_not_redriven(engine: Engine) -> None:
    stages = [StageSpec("a", [TaskSpec("bad")], on_failure="continue"), StageSpec("b", [TaskSpec("y")])]
    flow = engine.submit_flow("f", stages)
    engine.fail(take(engine), "no", retryable=False)
    before = written(engine)
    with pytest.raises(IllegalTransition, match="stage 'a' is over"):
        engine.redrive(flow.tasks[0])
    assert written(engine) == before


def test_redriving_a_member_of_a_flow_that_has_ended_keeps_its_delay(engine: Engine, clock: VirtualClock) -> None:
    flow = failed(engine)
    new = engine.redrive(flow.tasks[2], delay_s=60).id or ""
    assert engine.task(new).run_at == clock.now() + 60_000_000
    assert run_all(engine) == []
    clock.advance(60)
    engine.sweep()
    assert run_all(engine) == ["bad", "z"]


def chained(engine: Engine) -> Placed:
    """An open stage in which `first` was set aside, and `last`, which needs it, was cancelled for that."""
    tasks = [
        TaskSpec("bad", name="first"),
        TaskSpec("last", name="last", depends_on=("first",)),
        TaskSpec("x", queue="later"),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", tasks, sealed=False)], roll_up="drain")
    engine.fail(take(engine), "no", reason_code="parse_error")
    assert tasks_of(engine, flow.stages[0]) == ["dead_lettered", "cancelled", "queued"]
    return flow


def test_the_successor_in_an_open_stage_takes_over_the_name(engine: Engine) -> None:
    flow = chained(engine)
    new = engine.redrive(flow.tasks[0]).id or ""
    assert (engine.task(new).name, engine.task(flow.tasks[0]).name) == ("first", None)
    added = engine.add_tasks(flow.stages[0], [TaskSpec("more", depends_on=("first",))]).tasks[0]
    assert engine.task(added).unmet == 1
    with pytest.raises(NameTaken):
        engine.add_tasks(flow.stages[0], [TaskSpec("more", name="first")])
    assert run_all(engine) == ["bad", "more"]
    assert engine.inputs(added)["tasks"] == {"first": "bad"}


def test_the_successor_in_an_open_stage_waits_for_what_the_old_one_needed(engine: Engine) -> None:
    flow = chained(engine)
    before = written(engine)
    with pytest.raises(IllegalTransition, match="it needs 'first', which is dead_lettered: redrive that first"):
        engine.redrive(flow.tasks[1])
    assert written(engine) == before
    engine.redrive(flow.tasks[0])
    last = engine.redrive(flow.tasks[1]).id or ""
    assert (engine.task(last).name, engine.task(last).unmet) == ("last", 1)
    assert run_all(engine) == ["bad", "last"]
    assert engine.inputs(last)["tasks"] == {"first": "bad"}


def test_a_retry_of_a_flow_keeps_the_names_and_needs_of_what_was_redriven_in_it(engine: Engine) -> None:
    flow = chained(engine)
    engine.redrive(flow.tasks[0])
    engine.add_tasks(flow.stages[0], [TaskSpec("more", name="more", depends_on=("first",))])
    engine.seal_stage(flow.stages[0])
    engine.fail(take(engine), "no", reason_code="parse_error")
    engine.succeed(take(engine, queue="later"))
    assert how(engine, flow) == ["failed", "failed"]
    again = engine.retry_flow(flow.id)
    assert [engine.task(t).name for t in again.tasks] == ["first", "last", None, "more"]
    assert [engine.task(t).unmet for t in again.tasks] == [0, 1, 0, 1]
    assert run_all(engine) == ["bad", "last", "more"]


def test_the_successor_of_what_a_task_has_spawned_says_who_spawned_it(engine: Engine) -> None:
    tasks = [TaskSpec("x"), TaskSpec("y", queue="later")]
    engine.submit_flow("f", [StageSpec("a", tasks)], roll_up="drain")
    engine.succeed(take(engine), spawn={"a": [TaskSpec("z")]})
    spawned = take(engine)
    engine.fail(spawned, "no", reason_code="parse_error")
    new = engine.redrive(spawned.id).id
    sql = "SELECT n.spawned_by, o.spawned_by FROM onetray.task AS n JOIN onetray.task AS o ON o.key = n.retry_of"
    ((now, before),) = engine.store.read_sql(sql)
    assert new is not None
    assert now == before is not None


def to_undo(*kinds: str, **fields: Any) -> list[StageSpec]:
    """Stages of one task each, every one of which can be undone."""
    return [StageSpec(k, [TaskSpec(k)], compensate=TaskSpec(f"undo_{k}", [k]), **fields) for k in kinds]


def test_a_failed_flow_is_compensated_in_reverse_order(engine: Engine) -> None:
    flow = engine.submit_flow("f", [*to_undo("a", "b", "bad"), StageSpec("d")], correlation_id="c-1")
    for _ in range(2):
        held = take(engine)
        engine.succeed(held, held.kind)
    held = take(engine)
    (at_end,) = engine.flows()
    engine.fail(held, "no", retryable=False)
    undoing = engine.flow(engine.flow(flow.id).compensation or "")
    assert at_end.compensation is None
    assert (undoing.compensates, undoing.correlation_id, undoing.name) == (flow.id, "c-1", "f")
    stages = engine.stages(undoing.id)
    assert [(s.name, s.counts.total) for s in stages] == [("b", 1), ("a", 1)]
    (first,) = engine.claim(worker="w", limit=9)
    assert (first.kind, first.payload) == (
        "undo_b",
        {"flow": flow.id, "stage": "b", "stage_id": flow.stages[1], "result": ["b"], "payload": ["b"]},
    )
    engine.succeed(first)
    assert run_all(engine) == ["undo_a"]
    assert how(engine, undoing.id) == ["succeeded"] * 3
    for id_ in (flow.id, undoing.id):
        notes = [e for e in history(engine, id_) if e.type == "flow.compensated"]
        assert [(e.version, e.payload) for e in notes] == [(None, {"compensation": undoing.id, "outcome": "succeeded"})]
    # In one transaction with the end, so at the same time.
    submitted = history(engine, undoing.id)[0]
    assert submitted.ts == engine.flow(flow.id).finished_at
    assert "flow.compensation_submitted" in types(engine, flow, flow.id)


def test_what_cannot_be_undone_leaves_the_rest_to_be_undone_and_is_noted(engine: Engine) -> None:
    flow = engine.submit_flow("f", to_undo("a", "b", "bad"))
    assert run_all(engine, bad={"bad", "undo_b"}) == ["a", "b", "bad", "undo_b", "undo_a"]
    undoing = engine.flow(flow.id).compensation or ""
    assert how(engine, undoing) == ["failed", "failed", "succeeded"]
    for id_ in (flow.id, undoing):
        assert types(engine, id_, id_)[-1] == "flow.compensation_failed"


@each_case("hard", [False, True])
def test_a_cancelled_flow_is_compensated_for_what_it_has_done(engine: Engine, hard: bool) -> None:
    flow = engine.submit_flow("f", to_undo("a", "b"))
    engine.succeed(take(engine))
    engine.cancel_flow(flow.id, hard=hard)
    assert run_all(engine) == ["undo_a"]


def test_nothing_is_compensated_when_nothing_was_done_or_all_went_well(engine: Engine) -> None:
    good = engine.submit_flow("f", to_undo("a", "b"))
    run_all(engine)
    none = engine.submit_flow("f", to_undo("bad", "b"))
    run_all(engine, bad={"bad"})
    assert [engine.flow(f.id).compensation for f in (good, none)] == [None, None]
    assert len(engine.flows()) == 2


def test_a_stage_that_was_skipped_and_carried_over_has_nothing_to_undo(engine: Engine) -> None:
    skipped = StageSpec("a", [TaskSpec("a")], when=TaskSpec("decide"), compensate=TaskSpec("undo_a"))
    flow = engine.submit_flow("f", [skipped, *to_undo("b"), StageSpec("c", [TaskSpec("bad")])])
    engine.succeed(take(engine), False)
    assert run_all(engine, bad={"bad"}) == ["b", "bad", "undo_b"]
    again = engine.retry_flow(flow.id, from_stage="c")
    assert how(engine, again)[1:3] == ["skipped", "succeeded"]
    assert run_all(engine, bad={"bad"}) == ["bad", "undo_b"]
    settle(engine)
    assert tasks_of(engine, again.stages[2]) == ["failed"]
