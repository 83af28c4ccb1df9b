"""What tasks and stages give: results, metrics, tasks for later stages, contexts."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from onetray.config import EngineConfig, Limits
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Succeed, ticket
from onetray.domain.errors import DependencyCycle, IllegalTransition, InvalidInput, NameTaken, NotFound
from onetray.domain.flow import More, Placed, StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.engines import engine_on
from tests.support.flows import history, how, run_all, tasks_of
from tests.support.tasks import UNKNOWN_ID, submit, take, written


def one_stage(engine: Engine, n: int = 3, **fields: Any) -> Placed:
    return engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", i) for i in range(n)], **fields)], roll_up="mixed")


@each_case(("collect", "result"), [("list", [[0, {"v": 0}], [1, {"v": 1}], None]), ("one", None), ("none", None)])
def test_a_stage_collects_the_results_of_its_tasks_in_their_order(engine: Engine, collect: str, result: Any) -> None:
    flow = one_stage(engine, collect=collect)
    for task in reversed(engine.claim(worker="w", limit=3)):
        engine.succeed(task, [task.payload, {"v": task.payload}] if task.payload < 2 else None)
    assert engine.stage(flow.stages[0]).result == result
    rows = engine.stage_results(flow.stages[0])
    assert [(id_, name, state) for _, id_, name, state, _ in rows] == [(t, None, "succeeded") for t in flow.tasks]
    assert [result for *_, result in rows] == [[0, {"v": 0}], [1, {"v": 1}], None]
    page = engine.stage_results(flow.stages[0], after=rows[0][0], limit=1)
    assert [r[1] for r in page] == [flow.tasks[1]]


def test_collecting_one_gives_the_result_of_the_last_success(engine: Engine) -> None:
    flow = one_stage(engine, 2, collect="one")
    run_all(engine, answer=lambda task: task.payload)
    assert engine.stage(flow.stages[0]).result == 1


def test_only_successes_are_collected(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("bad"), TaskSpec("y")])], roll_up="mixed")
    run_all(engine, bad={"bad"})
    assert how(engine, flow) == ["partial", "partial"]
    assert engine.stage(flow.stages[0]).result == ["x", "y"]
    assert [r[3] for r in engine.stage_results(flow.stages[0])] == ["succeeded", "failed", "succeeded"]


@pytest.mark.parametrize(("n", "size", "kept"), [(4, 1, True), (5, 1, False), (2, 20, True), (2, 40, False)])
def test_results_past_a_limit_are_left_to_be_read_in_pages(database_url: str, n: int, size: int, kept: bool) -> None:
    limits = Limits(collected=4, result_bytes=60)
    with engine_on(database_url, VirtualClock(), config=EngineConfig(limits=limits)) as engine:
        flow = one_stage(engine, n)
        run_all(engine, answer=lambda _: "ü" * (size // 2) + "x" * (size % 2))
        result = engine.stage(flow.stages[0]).result
        assert (result is not None) == kept
        assert len(engine.stage_results(flow.stages[0])) == n
        assert how(engine, flow)[0] == "succeeded"


def test_a_later_task_is_given_what_came_before_and_what_it_depends_on(engine: Engine) -> None:
    stages = [
        StageSpec("a", [TaskSpec("x", name="n"), TaskSpec("y")]),
        StageSpec("b", [TaskSpec("z")], collect="none"),
        StageSpec("c", [TaskSpec("last", depends_on=("n",)), TaskSpec("free")]),
    ]
    flow = engine.submit_flow("f", stages)
    assert engine.inputs(flow.tasks[0]) == {"stages": {}, "tasks": {}}
    run_all(engine)
    assert engine.inputs(flow.tasks[3]) == {"stages": {"a": ["x", "y"], "b": None}, "tasks": {"n": "x"}}
    assert engine.inputs(flow.tasks[4])["tasks"] == {}
    with pytest.raises(NotFound):
        engine.inputs(submit(engine))


def test_metrics_add_up_over_the_tasks_of_a_stage(engine: Engine) -> None:
    flow = one_stage(engine)
    said = [{"rows": 2, "s": 0.5, "v": "a", "ok": True}, {"rows": 3, "s": 1, "v": "b"}, {"rows": "many", "new": [1]}]
    for task, metrics in zip(engine.claim(worker="w", limit=3), said, strict=True):
        engine.succeed(task, metrics=metrics)
    assert engine.stage(flow.stages[0]).metrics == {"rows": "many", "s": 1.5, "v": "b", "ok": True, "new": [1]}


def test_metrics_stay_numbers_however_large_they_get(engine: Engine) -> None:
    flow = one_stage(engine, 4)
    for task in engine.claim(worker="w", limit=4):
        engine.succeed(task, metrics={"n": 2**63 - 1, "low": -(2**63), "x": 1e308})
    metrics = engine.stage(flow.stages[0]).metrics
    assert metrics == {"n": float(4 * 2**63), "low": float(-4 * 2**63), "x": sys.float_info.max}
    assert how(engine, flow)[0] == "succeeded"


def test_a_success_spawns_tasks_for_later_stages_and_its_own(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b"), StageSpec("c", [TaskSpec("z")])])
    spawn = {"b": [TaskSpec("y", i) for i in range(3)], "a": [TaskSpec("x2")]}
    held = take(engine)
    engine.succeed(held, spawn=spawn)
    assert how(engine, flow) == ["running", "running", "created", "created"]
    assert engine.succeed(held, spawn=spawn).repeated
    assert run_all(engine) == ["x2", "y", "y", "y", "z"]
    assert engine.stage(flow.stages[1]).counts.total == 3
    assert engine.inputs(flow.tasks[1])["stages"]["b"] == ["y"] * 3
    spawned = [e for e in history(engine, flow) if e.type == "task.submitted" and e.cause == "spawned"]
    assert {e.actor for e in spawned} == {"worker:w"}
    assert len(spawned) == 4


def test_a_stage_for_which_nothing_is_spawned_is_skipped(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b"), StageSpec("c", [TaskSpec("z")])])
    assert run_all(engine) == ["x", "z"]
    assert how(engine, flow) == ["succeeded", "succeeded", "skipped", "succeeded"]


def test_spawned_tasks_may_depend_on_each_other_and_on_their_spawner(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="x")]), StageSpec("b")])
    spawn = {"b": [TaskSpec("z", name="z", depends_on=("y", "x")), TaskSpec("y", name="y")]}
    engine.succeed(take(engine), spawn=spawn)
    assert run_all(engine) == ["y", "z"]
    assert how(engine, flow)[0] == "succeeded"


def test_a_spawned_task_waits_for_all_that_succeeds_with_its_spawner_once(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="x"), TaskSpec("y", name="y")]), StageSpec("b")])
    x, y = engine.claim(worker="w", limit=2)
    spawn = {"b": [TaskSpec("last", depends_on=("x", "y", "z")), TaskSpec("z", name="z")]}
    verdicts = engine.run([Succeed(**ticket(x)), Succeed(**ticket(y), more=More(spawn=spawn))])
    assert [v.ok for v in verdicts] == [True, True]
    assert run_all(engine) == ["z", "last"]


REFUSED: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "an unknown stage": (NotFound, {"nowhere": [TaskSpec("x")]}),
    "an earlier stage": (IllegalTransition, {"a": [TaskSpec("x")]}),
    "a stage that has ended": (IllegalTransition, {"c": [TaskSpec("x")]}),
    "a name that is taken": (NameTaken, {"b": [TaskSpec("x", name="taken")]}),
    "an unknown dependency": (InvalidInput, {"b": [TaskSpec("x", depends_on=("nobody",))]}),
    "a cycle": (DependencyCycle, {"b": [TaskSpec("x", name="n", depends_on=("n",))]}),
    "one good and one bad": (NotFound, {"b": [TaskSpec("x")], "nowhere": [TaskSpec("x")]}),
}


@each_case("case", REFUSED)
def test_a_success_whose_spawn_is_refused_is_not_accepted(engine: Engine, case: str) -> None:
    tasks = {"a": [TaskSpec("x")], "b": [TaskSpec("x", name="taken"), TaskSpec("x")], "c": [TaskSpec("x")]}
    flow = engine.submit_flow("f", [StageSpec(name, some) for name, some in tasks.items()])
    engine.skip_stage(flow.stages[2])
    engine.succeed(take(engine))
    held = take(engine)
    before = written(engine)
    error, spawn = REFUSED[case]
    with pytest.raises(error):
        engine.succeed(held, 1, spawn=spawn, metrics={"n": 1}, context=1)
    assert written(engine) == before
    assert engine.succeed(held, 1).state == "succeeded"


def test_two_successes_of_one_batch_that_spawn_the_same_name_do_not_harm_each_other(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2), StageSpec("b")])
    held = engine.claim(worker="w", limit=2)
    good, bad = engine.run([Succeed(**ticket(a), more=More(spawn={"b": [TaskSpec("y", name="same")]})) for a in held])
    assert good.ok
    assert isinstance(bad.error, NameTaken)
    assert tasks_of(engine, flow.stages[0]) == ["succeeded", "assigned"]
    assert engine.stage(flow.stages[1]).counts.total == 1


def test_a_single_task_has_nothing_more_to_say(engine: Engine) -> None:
    id_ = submit(engine)
    held = take(engine)
    before = written(engine)
    with pytest.raises(InvalidInput) as refused:
        engine.succeed(held, 1, partial=True)
    assert refused.value.field == "more"
    assert written(engine) == before
    assert engine.task(id_).state == "assigned"


def test_tasks_can_be_added_in_the_name_of_a_member(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    other = submit(engine, "f")
    engine.add_tasks(flow.stages[0], [TaskSpec("x")], spawned_by=flow.tasks[0])
    before = written(engine)
    for id_ in (other, UNKNOWN_ID):
        with pytest.raises(NotFound, match=id_):
            engine.add_tasks(flow.stages[0], [TaskSpec("x")], spawned_by=id_)
    assert written(engine) == before
    assert engine.stage(flow.stages[0]).counts.total == 2


def test_contexts_are_appended_and_the_newest_of_the_run_is_current(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")] * 2)], context={"n": 0})
    first = engine.context(flow.id)
    assert first is not None
    assert (first.payload, first.parent_id, first.scope, first.flow_id) == ({"n": 0}, None, "run", flow.id)
    second = engine.append_context(flow.id, {"n": 1}, label="one")
    aside = engine.append_context(flow.id, "aside", scope="task", task=flow.tasks[0])
    branch = engine.append_context(flow.id, {"n": 2}, parent=first.id)
    found = {c.id: c for c in engine.contexts(flow.id)}
    assert list(found) == [first.id, second, aside, branch]
    assert [c.parent_id for c in found.values()] == [None, first.id, second, first.id]
    assert (found[second].label, found[aside].task_id, found[aside].scope) == ("one", flow.tasks[0], "task")
    current = engine.context(flow.id)
    assert current is not None
    assert current.id == branch
    assert [c.id for c in engine.contexts(flow.id, after=found[second].key, limit=1)] == [aside]
    noted = [e.payload for e in history(engine, flow) if e.type == "flow.context_appended"]
    assert [n["context"] for n in noted] == list(found)


def test_a_task_keeps_the_context_that_was_current_when_it_came(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")]), StageSpec("b")], context=1)
    first = engine.context(flow.id)
    assert first is not None
    second = engine.append_context(flow.id, 2)
    added = engine.add_tasks(flow.stages[0], [TaskSpec("x")])
    assert engine.task(flow.tasks[0]).context_id == first.id
    assert engine.task(added.tasks[0]).context_id == second
    held = take(engine)
    engine.succeed(held, context={"n": 3}, context_label="done")
    third = engine.context(flow.id)
    assert third is not None
    assert (third.payload, third.label, third.task_id, third.parent_id) == ({"n": 3}, "done", held.id, second)
    late = engine.add_stage(flow.id, StageSpec("c", [TaskSpec("y")]))
    assert engine.task(late.tasks[0]).context_id == third.id


def test_a_context_of_elsewhere_or_for_a_flow_that_has_ended_is_refused(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    other = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])], context=1)
    elsewhere = engine.context(other.id)
    assert elsewhere is not None
    assert engine.context(flow.id) is None
    assert engine.contexts(flow.id) == []
    before = written(engine)
    for fields in ({"parent": elsewhere.id}, {"parent": UNKNOWN_ID}, {"task": other.tasks[0]}):
        with pytest.raises(NotFound):
            engine.append_context(flow.id, 1, **fields)
    assert written(engine) == before
    run_all(engine)
    with pytest.raises(IllegalTransition):
        engine.append_context(flow.id, 1)
