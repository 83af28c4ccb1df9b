"""Metadata, trace context, the type of a stage, the priority of a flow, retry counts, and a stage that is cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.commands import Submit
from onetray.domain.errors import Conflict, IllegalTransition, InvalidInput, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, last, run_all, tasks_of, types
from tests.support.tasks import UNKNOWN_ID

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# Metadata.


def test_a_task_keeps_the_metadata_that_it_was_submitted_with(engine: Engine) -> None:
    alone = engine.submit("x", metadata={"ticket": 7}, tracestate="a=1").id or ""
    many = [verdict.unwrap().id for verdict in engine.run([Submit(kind="x", metadata=[n]) for n in range(3)])]
    plain = engine.submit("x").id or ""
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("y", metadata="m", tracestate="b=2"), TaskSpec("y")])])
    assert (engine.task(alone).metadata, engine.task(alone).tracestate) == ({"ticket": 7}, "a=1")
    assert [engine.task(id_).metadata for id_ in many] == [[0], [1], [2]]
    assert (engine.task(plain).metadata, engine.task(plain).tracestate) == (None, None)
    found = [(t.metadata, t.tracestate) for t in engine.stage_tasks(flow.stages[0])]
    assert found == [("m", "b=2"), (None, None)]


def test_metadata_is_replaced_in_any_state_and_leaves_a_note(engine: Engine) -> None:
    task = engine.submit("x", metadata={"a": 1}).id or ""
    assert engine.set_metadata(task, {"b": 2}, actor_name="ann").state == "queued"
    run_all(engine)
    assert engine.set_metadata(task, None).state == "succeeded"
    seen = engine.task(task)
    assert (seen.metadata, seen.version) == (None, 4)
    notes = [e for e in engine.events(task) if e.type == "task.metadata_set"]
    assert [(e.actor, e.payload) for e in notes] == [("user:ann", None), ("user:anonymous", None)]


def test_the_metadata_of_a_flow_and_of_a_stage_is_replaced(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], metadata=1)], metadata={"a": 1})
    assert engine.set_flow_metadata(flow.id, {"b": 2}).id == flow.id
    assert engine.set_stage_metadata(flow.stages[0], [3]).id == flow.stages[0]
    run_all(engine)
    assert engine.set_flow_metadata(flow.id, {"c": 3}).was == "succeeded"
    assert (engine.flow(flow.id).metadata, engine.stage(flow.stages[0]).metadata) == ({"c": 3}, [3])
    of_flow = [e.type for e in history(engine, flow) if e.type.endswith("metadata_set")]
    assert of_flow == ["flow.metadata_set", "stage.metadata_set", "flow.metadata_set"]


def test_metadata_that_is_too_large_is_refused(engine: Engine) -> None:
    large = "x" * (engine.config.limits.payload_bytes + 1)
    task = engine.submit("x").id or ""
    for refused in (lambda: engine.submit("x", metadata=large), lambda: engine.set_metadata(task, large)):
        with pytest.raises(InvalidInput, match="metadata"):
            refused()
    with pytest.raises(NotFound):
        engine.set_metadata(UNKNOWN_ID, 1)


def test_what_is_run_again_keeps_its_metadata(engine: Engine) -> None:
    task = engine.submit("x", metadata={"m": 1}, max_attempts=1).id or ""
    flow = engine.submit_flow(
        "f", [StageSpec(type="t", tasks=[TaskSpec("x", metadata=2)], metadata=3)], metadata=4, priority=5
    )
    run_all(engine, bad=("x",))
    again = engine.redrive(task).id or ""
    assert engine.task(again).metadata == {"m": 1}
    retried = engine.retry_flow(flow.id)
    seen, stage = engine.flow(retried.id), engine.stages(retried.id)[0]
    assert (seen.metadata, seen.priority, stage.metadata, stage.type) == (4, 5, 3, "t")
    assert [(t.metadata, t.priority) for t in engine.stage_tasks(stage.id)] == [(2, 5)]


# Trace context.


def test_each_stage_and_each_task_has_its_own_trace_or_that_of_what_it_belongs_to(engine: Engine) -> None:
    flow = engine.submit_flow(
        "f",
        [StageSpec("a", [TaskSpec("x"), TaskSpec("x", trace=OTHER)], trace=OTHER, tracestate="s=1"), StageSpec("b")],
        trace=TRACE, tracestate="f=1", sealed=False,
    )  # fmt: skip
    added = engine.add_stage(flow.id, StageSpec("c", [TaskSpec("x"), TaskSpec("x", trace=TRACE)]), trace=OTHER)
    more = engine.add_tasks(added.id, [TaskSpec("x"), TaskSpec("x", trace=TRACE)], trace=OTHER)
    seen = engine.flow(flow.id)
    assert (seen.trace, seen.tracestate) == (TRACE, "f=1")
    stages = engine.stages(flow.id)
    assert [(s.trace, s.tracestate) for s in stages] == [(OTHER, "s=1"), (TRACE, None), (OTHER, None)]
    assert [engine.task(id_).trace for id_ in flow.tasks] == [OTHER, OTHER]
    assert [engine.task(id_).trace for id_ in (*added.tasks, *more.tasks)] == [OTHER, TRACE, OTHER, TRACE]


# The type of a stage.


def test_a_flow_may_have_several_stages_of_one_type(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec(type="t"), StageSpec(type="t"), StageSpec("t 3")], sealed=False)
    engine.add_stage(flow.id, StageSpec(type="t"))
    engine.add_stage(flow.id, StageSpec(type="u"))
    found = [(s.name, s.type) for s in engine.stages(flow.id)]
    assert found == [("t", "t"), ("t 2", "t"), ("t 3", "t 3"), ("t 4", "t"), ("u", "u")]


def test_a_stage_with_a_long_type_gets_a_name_within_the_limit(engine: Engine) -> None:
    type_ = "t" * engine.config.limits.name_chars
    flow = engine.submit_flow("f", [StageSpec(type=type_, tasks=[TaskSpec("x")]), StageSpec(type=type_)])
    engine.cancel_flow(flow.id)
    names = [s.name for s in engine.stages(flow.id)]
    assert names == [type_, f"{type_[:-2]} 2"]
    assert engine.retry_flow(flow.id, from_stage=names[1]).state


def test_a_stage_without_a_name_and_a_type_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="a name or a type"):
        engine.submit_flow("f", [StageSpec()])


# The priority of a flow.


def test_tasks_without_a_priority_have_that_of_their_flow(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("x", priority=0)])], priority=5)
    more = engine.add_tasks(flow.stages[0], [TaskSpec("x")])
    assert [engine.task(id_).priority for id_ in (*flow.tasks, *more.tasks)] == [5, 0, 5]
    assert engine.flow(flow.id).priority == 5


def test_a_new_priority_counts_for_all_queued_tasks_and_for_those_that_come(engine: Engine) -> None:
    other = engine.submit("other", priority=5).id
    flow = engine.submit_flow(
        "f",
        [StageSpec("a", [TaskSpec("x"), TaskSpec("x"), TaskSpec("x", delay_s=60)]), StageSpec("b", [TaskSpec("x")])],
    )
    first = engine.claim(worker="w", kinds=("x",))[0]
    assert engine.set_flow_priority(flow.id, 9, actor_name="ann").was == "pending"
    assert engine.set_flow_priority(flow.id, 9).repeated
    more = engine.add_tasks(flow.stages[0], [TaskSpec("x")])
    found = [engine.task(id_).priority for id_ in (*flow.tasks, *more.tasks)]
    assert found == [0, 9, 9, 9, 9]
    assert first.id == flow.tasks[0]
    assert [a.id for a in engine.claim(worker="w", limit=9)] == [flow.tasks[1], *more.tasks, other]
    (note,) = [e for e in history(engine, flow) if e.type == "flow.priority_set"]
    assert (note.actor, note.payload) == ("user:ann", {"was": 0, "priority": 9})


def test_a_flow_that_has_ended_keeps_its_priority(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    run_all(engine)
    with pytest.raises(IllegalTransition):
        engine.set_flow_priority(flow.id, 1)


# Tasks that are being retried.


def test_a_stage_counts_its_tasks_that_are_retried(engine: Engine) -> None:
    tasks = [TaskSpec("x", max_attempts=3) for _ in range(3)]
    flow = engine.submit_flow("f", [StageSpec("a", tasks), StageSpec("b", tasks)], roll_up="drain")

    def retrying() -> int:
        return engine.stage(flow.stages[0]).counts.retrying

    def open_tasks(stage: int) -> tuple[int, int, int, int]:
        c = engine.stage(flow.stages[stage]).counts
        assert c.created + c.pending + c.retried + c.held + c.done == c.total
        return c.created, c.pending, c.retried, c.held

    one, two, three = engine.claim(worker="w", limit=3)
    engine.fail(one, "no", retry_after_s=0)
    engine.fail(two, "no", retry_after_s=0)
    engine.release(three)
    assert retrying() == 2
    assert (open_tasks(0), open_tasks(1)) == ((0, 1, 2, 0), (3, 0, 0, 0))
    one, two, three = engine.claim(worker="w", limit=3)
    assert retrying() == 2
    assert open_tasks(0) == (0, 0, 0, 3)
    engine.succeed(one)
    engine.pause(three, owner="ann", reason="why")
    assert (open_tasks(0), engine.progress(flow.id).counts.created) == ((0, 1, 0, 1), 3)
    engine.resume(three.id)
    (three,) = engine.claim(worker="w")
    assert retrying() == 1
    engine.release(two)
    assert retrying() == 1
    engine.fail(three, "no", retryable=False)
    engine.cancel(two.id)
    assert retrying() == 0


# A stage that a user cancels.


@each_case(("on_failure", "states"), [
    ("stop", ["cancelled", "cancelled", "skipped"]),
    ("continue", ["cancelled", "cancelled", "succeeded"]),
    ("ignore", ["succeeded", "cancelled", "succeeded"]),
])  # fmt: skip
def test_a_flow_goes_on_after_a_cancelled_stage_as_its_policy_says(
    engine: Engine, on_failure: Any, states: list[str]
) -> None:
    flow = engine.submit_flow(
        "f", [StageSpec("a", [TaskSpec("x")] * 2, on_failure=on_failure), StageSpec("b", [TaskSpec("y")])]
    )
    held = engine.claim(worker="w")[0]
    engine.start(held)
    cancelled = engine.cancel_stage(flow.stages[0], hard=True, actor_name="ann", cause="not needed")
    assert (cancelled.state, cancelled.was) == ("cancelled", "running")
    assert tasks_of(engine, flow.stages[0]) == ["cancelled"] * 2
    assert last(engine, flow, flow.stages[0]).actor == "user:ann"
    run_all(engine)
    assert how(engine, flow) == states


def test_a_stage_that_is_cancelled_softly_waits_for_its_workers(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2, on_failure="continue")])
    held = engine.claim(worker="w")[0]
    engine.start(held)
    assert engine.cancel_stage(flow.stages[0]).state == "running"
    assert engine.cancel_stage(flow.stages[0]).repeated
    assert engine.beat(held).cancel == (held.id,)
    assert tasks_of(engine, flow.stages[0]) == ["running", "cancelled"]
    engine.fail(held, "stopped")
    assert how(engine, flow) == ["cancelled", "cancelled"]


def test_a_stage_that_would_stop_the_flow_later_is_not_cancelled_before_its_turn(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b", [TaskSpec("y")])])
    with pytest.raises(Conflict, match="skip the stage, or cancel the flow"):
        engine.cancel_stage(flow.stages[1])
    run_all(engine)
    with pytest.raises(IllegalTransition):
        engine.cancel_stage(flow.stages[1])
    assert types(engine, flow, flow.id)[-1] == "flow.succeeded"
