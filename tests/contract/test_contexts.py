"""Snapshots of a flow's context: reads by id and alias, tasks that name one."""

from __future__ import annotations

from typing import Any

import pytest

from onetray import Engine, InvalidInput, NotFound, StageSpec, TaskSpec, TooLarge
from onetray.domain import flow_commands as fc
from onetray.domain.errors import AliasTaken
from onetray.domain.flow import Placed
from onetray.domain.policy import Policy
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, take


def new_flow(engine: Engine, **fields: Any) -> Placed:
    return engine.submit_flow("plan", [StageSpec("all", sealed=False)], sealed=False, **fields)


def add(engine: Engine, flow: Placed, **fields: Any) -> str:
    (task,) = engine.add_tasks(flow.stages[0], [TaskSpec("mail", **fields)], namespace="default").tasks
    return task


def test_a_snapshot_is_found_by_its_id_and_by_its_alias(engine: Engine) -> None:
    flow = new_flow(engine, context={"n": 0})
    first = engine.context(flow.id)
    assert first is not None
    id_ = engine.append_context(flow.id, {"n": 1}, alias="plan/1 ☂", label="draft")
    now = engine.context(flow.id)
    assert now == engine.context_by_id("plan/1 ☂") == engine.context_by_id(id_) == engine.contexts(flow.id)[-1]
    assert now is not None
    assert (now.id, now.alias, now.parent_id, now.label, now.payload) == (id_, "plan/1 ☂", first.id, "draft", {"n": 1})
    assert engine.context_by_id(first.id.upper()) == first
    note = engine.flow_events(flow.id)[-1]
    assert (note.type, note.payload["context"]) == ("flow.context_appended", id_)
    child = engine.append_context(flow.id, {"n": 2}, parent="plan/1 ☂")
    assert engine.context_by_id(child).parent_id == id_


def test_a_snapshot_of_another_namespace_is_not_found(engine: Engine) -> None:
    flow, elsewhere = new_flow(engine), new_flow(engine, namespace="north")
    id_ = engine.append_context(flow.id, 1, alias="a")
    engine.append_context(elsewhere.id, 2, alias="a", namespace="north")
    assert (engine.context_by_id("a").payload, engine.context_by_id("a", namespace="north").payload) == (1, 2)
    for unseen in (id_, UNKNOWN_ID, "nothing"):
        with pytest.raises(NotFound):
            engine.context_by_id(unseen, namespace="north")


def test_the_alias_of_a_task_is_that_of_no_snapshot(engine: Engine) -> None:
    flow = new_flow(engine)
    add(engine, flow, alias="a")
    with pytest.raises(NotFound):
        engine.context_by_id("a")
    with pytest.raises(NotFound, match="no context"):
        add(engine, flow, context_id="a")


def test_a_task_gets_the_snapshot_that_it_names(engine: Engine) -> None:
    flow = new_flow(engine, context={"n": 0})
    one = engine.append_context(flow.id, {"n": 1}, alias="one")
    two = engine.append_context(flow.id, {"n": 2})
    tasks = [add(engine, flow, context_id=named) for named in ("one", two, two.upper(), None)]
    assert [engine.task(task).context_id for task in tasks] == [one, two, two, two]
    own = engine.append_context(flow.id, {"n": 3}, scope="task", task=tasks[0], alias="own")
    current = engine.context(flow.id)
    assert current is not None
    assert current.id == two
    assert engine.task(add(engine, flow, context_id="own")).context_id == own


def test_a_task_cannot_name_the_snapshot_of_another_flow(engine: Engine) -> None:
    flow, other = new_flow(engine, context=1), new_flow(engine, context=2)
    engine.append_context(other.id, 3, alias="theirs")
    current = engine.context(other.id)
    assert current is not None
    before = engine.flow(flow.id)
    for named in ("theirs", current.id, UNKNOWN_ID, "nothing"):
        with pytest.raises(NotFound, match="no context"):
            add(engine, flow, name="a", context_id=named)
        with pytest.raises(NotFound, match="no context"):
            engine.add_stage(flow.id, StageSpec("late", [TaskSpec("mail", context_id=named)]))
        with pytest.raises(NotFound, match="no context"):
            engine.append_context(flow.id, 1, parent=named)
    assert engine.flow(flow.id) == before
    assert engine.stage_tasks(flow.stages[0]) == []


def test_a_spawned_task_may_name_one_too(engine: Engine) -> None:
    flow = new_flow(engine, context=0)
    one, two = (engine.append_context(flow.id, n, alias=alias) for n, alias in ((1, "one"), (2, "two")))
    add(engine, flow)
    held = take(engine)
    with pytest.raises(NotFound, match="no context"):
        engine.succeed(held, spawn={"all": [TaskSpec("mail", context_id="three")]})
    engine.succeed(held, spawn={"all": [TaskSpec("mail", context_id="one")]}, context={"n": 3}, context_label="next")
    assert engine.task(take(engine).id).context_id == one
    current = engine.context(flow.id)
    assert current is not None
    assert (current.payload, current.label, current.parent_id, current.task_id) == ({"n": 3}, "next", two, held.id)


def test_a_redriven_task_keeps_its_snapshot(engine: Engine) -> None:
    flow = new_flow(engine, context=0, roll_up="drain")
    one = engine.append_context(flow.id, 1, alias="one")
    engine.append_context(flow.id, 2)
    task = add(engine, flow, context_id="one", policy=Policy(max_attempts=1))
    engine.fail(take(engine), "no")
    successor = engine.redrive(task).id
    assert successor is not None
    assert engine.task(successor).context_id == one


@each_case("spec", ["task", "when", "compensate"])
def test_a_new_flow_has_no_snapshot_to_name(engine: Engine, spec: str) -> None:
    named = TaskSpec("mail", context_id="one")
    stage = StageSpec("all", [named]) if spec == "task" else StageSpec("all", [TaskSpec("mail")], **{spec: named})
    with pytest.raises(InvalidInput, match="context"):
        engine.submit_flow("plan", [stage])


def test_a_snapshot_has_a_size_and_goes_with_its_flow(engine: Engine) -> None:
    flow = new_flow(engine)
    with pytest.raises(TooLarge):
        engine.append_context(flow.id, "x" * 1_000_001)
    for bad in ("", "x" * 201, "a\0b"):
        with pytest.raises(InvalidInput, match="alias"):
            engine.append_context(flow.id, 1, alias=bad)
        with pytest.raises(InvalidInput, match="context"):
            engine.context_by_id(bad)
    engine.append_context(flow.id, 1, alias="one")
    engine.cancel_flow(flow.id)
    engine.delete_job(flow.id)
    with pytest.raises(NotFound):
        engine.context_by_id("one")
    again = new_flow(engine)
    assert engine.append_context(again.id, 2, alias="one")


def test_a_snapshot_by_id_is_redacted_like_the_others(engine: Engine) -> None:
    flow = new_flow(engine, redact=["secret"])
    engine.append_context(flow.id, {"secret": "hunter2", "open": 1}, alias="one")
    shown = engine.redacted.context_by_id("one")
    assert shown == engine.redacted.context(flow.id)
    assert "hunter2" not in repr(shown)
    assert engine.context_by_id("one").payload["secret"] == "hunter2"


def test_two_snapshots_of_one_alias_in_one_batch(engine: Engine) -> None:
    flow = new_flow(engine)
    first, second = engine.run([fc.AppendContext(flow.id, payload=n, alias="one") for n in (1, 2)])
    assert first.ok
    assert isinstance(second.error, AliasTaken)
    assert [snapshot.payload for snapshot in engine.contexts(flow.id)] == [1]
