"""Tasks that wait for other tasks: in a stage, across stages, and what becomes of those whose wait is in vain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import DependencyCycle, InvalidInput
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, last, run_all, tasks_of
from tests.support.tasks import UNKNOWN_ID, settle, take, written


def task(name: str, *needs: str) -> TaskSpec:
    """A task whose kind is its name."""
    return TaskSpec(name, name=name, depends_on=needs)


def claimable(engine: Engine) -> list[str]:
    return sorted(a.kind for a in engine.claim(worker="w", limit=100))


def test_tasks_run_in_an_order_that_meets_their_dependencies(engine: Engine) -> None:
    tasks = [task("last", "left", "right"), task("left", "first"), task("right", "first"), task("first")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    assert [engine.task(id_).unmet for id_ in flow.tasks] == [2, 1, 1, 0]
    assert run_all(engine) == ["first", "left", "right", "last"]
    assert how(engine, flow) == ["succeeded", "succeeded"]
    history(engine, flow)


def test_a_task_is_let_go_with_the_last_of_what_it_needs(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", [task("one"), task("two"), task("both", "one", "two")])])
    one, two = engine.claim(worker="w", limit=10)
    engine.succeed(one)
    assert claimable(engine) == []
    engine.succeed(two)
    assert claimable(engine) == ["both"]


def test_two_dependencies_that_end_in_one_batch_let_go_once(engine: Engine) -> None:
    from onetray.domain.commands import Succeed, ticket

    engine.submit_flow("f", [StageSpec("a", [task("one"), task("two"), task("both", "one", "two")])])
    held = engine.claim(worker="w", limit=10)
    engine.run([Succeed(**ticket(a)) for a in held])
    assert claimable(engine) == ["both"]


def test_dependencies_across_stages_are_met_when_the_stage_opens(engine: Engine) -> None:
    stages = [StageSpec("a", [task("one"), task("two")]), StageSpec("b", [task("three", "one"), task("four", "three")])]
    flow = engine.submit_flow("f", stages)
    assert run_all(engine) == ["one", "two", "three", "four"]
    assert how(engine, flow) == ["succeeded"] * 3


def test_a_dependency_that_is_met_does_not_open_a_stage_early(engine: Engine) -> None:
    engine.submit_flow("f", [StageSpec("a", [task("one"), task("two")]), StageSpec("b", [task("three", "one")])])
    one, two = engine.claim(worker="w", limit=10)
    engine.succeed(one)
    assert claimable(engine) == []
    engine.succeed(two)
    assert claimable(engine) == ["three"]


@each_case("first", ["its time comes", "its dependency succeeds"])
def test_a_dependent_with_a_delay_waits_for_both(engine: Engine, clock: VirtualClock, first: str) -> None:
    late = TaskSpec("late", depends_on=("one",), delay_s=60)
    engine.submit_flow("f", [StageSpec("a", [task("one"), late])])
    if first == "its time comes":
        clock.advance(61)
        settle(engine)
        held = take(engine)
        assert claimable(engine) == []
        engine.succeed(held)
    else:
        engine.succeed(take(engine))
        assert claimable(engine) == []
        clock.advance(61)
        settle(engine)
    assert claimable(engine) == ["late"]


def test_a_failed_dependency_cancels_all_that_depends_on_it(engine: Engine) -> None:
    tasks = [task("bad"), task("two", "bad"), task("three", "two"), task("four", "three", "free"), task("free")]
    flow = engine.submit_flow("f", [StageSpec("a", tasks), StageSpec("b", [task("five", "four")])], roll_up="mixed")
    assert run_all(engine, bad={"bad"}) == ["bad", "free"]
    assert tasks_of(engine, flow.stages[0]) == ["failed", "cancelled", "cancelled", "cancelled", "succeeded"]
    assert tasks_of(engine, flow.stages[1]) == ["cancelled"]
    for id_, needed, was in (
        (flow.tasks[1], flow.tasks[0], "failed"),
        (flow.tasks[2], flow.tasks[1], "cancelled"),
        (flow.tasks[5], flow.tasks[3], "cancelled"),
    ):
        end = last(engine, flow, id_)
        assert (end.cause, end.actor) == ("dependency_failed", "system:engine")
        assert end.payload == {"dependency": needed, "was": was}
    assert how(engine, flow) == ["partial", "partial", "cancelled"]


ENDS: dict[str, Callable[[Engine, VirtualClock], object]] = {
    "failed": lambda e, c: e.fail(take(e), "no", retryable=False),
    "dead_lettered": lambda e, c: e.fail(take(e), "no", reason_code="parse_error"),
    "cancelled": lambda e, c: e.cancel(take(e).id, hard=True),
}


@each_case("end", ENDS)
def test_any_end_but_success_fails_a_dependency(engine: Engine, clock: VirtualClock, end: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), task("two", "one")])], roll_up="drain")
    ENDS[end](engine, clock)
    assert tasks_of(engine, flow.stages[0]) == [end, "cancelled"]
    assert last(engine, flow, flow.tasks[1]).payload["was"] == end
    assert how(engine, flow)[0] in ("failed", "cancelled")


def test_a_dependency_that_is_tried_again_keeps_its_dependents_waiting(engine: Engine, clock: VirtualClock) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), task("two", "one")])])
    engine.fail(take(engine), "later")
    assert tasks_of(engine, flow.stages[0]) == ["queued", "queued"]
    clock.advance(3600)
    settle(engine)
    assert run_all(engine) == ["one", "two"]


@each_case(
    ("tasks", "cycle"),
    [
        ([task("a", "a")], {"a"}),
        ([task("a", "b"), task("b", "a")], {"a", "b"}),
        ([task("free"), task("a", "free", "c"), task("b", "a"), task("c", "b")], {"a", "b", "c"}),
    ],
)
def test_a_cycle_is_refused_by_the_names_of_its_tasks(engine: Engine, tasks: list[TaskSpec], cycle: set[str]) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("f")])], sealed=False)
    before = written(engine)
    adds: list[Callable[[], object]] = [
        lambda: engine.submit_flow("f", [StageSpec("x", tasks)]),
        lambda: engine.add_stage(flow.id, StageSpec("x", tasks)),
        lambda: engine.add_tasks(flow.stages[0], tasks),
    ]
    for add in adds:
        with pytest.raises(DependencyCycle) as refused:
            add()
        assert set(refused.value.cycle) == cycle
        assert refused.value.cycle[0] == refused.value.cycle[-1]
        assert all(name in str(refused.value) for name in cycle)
    assert written(engine) == before


def test_a_task_cannot_need_one_of_a_later_stage(engine: Engine) -> None:
    with pytest.raises(DependencyCycle, match="'two' of stage 2"):
        engine.submit_flow("f", [StageSpec("a", [task("one", "two")]), StageSpec("b", [task("two")])])
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("f")]), StageSpec("b", [TaskSpec("f", name="two")])])
    before = written(engine)
    for needed in ("two", flow.tasks[1]):
        with pytest.raises(DependencyCycle, match="of stage 2, which opens only after it"):
            engine.add_tasks(flow.stages[0], [TaskSpec("f", depends_on=(needed,))])
    assert written(engine) == before


def test_a_dependency_that_the_flow_does_not_have_is_named(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="'nobody'") as refused:
        engine.submit_flow("f", [StageSpec("a", [task("one", "nobody")])])
    assert refused.value.field == "depends_on"
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("f", name="one")])])
    other = engine.submit_flow("f", [StageSpec("a", [TaskSpec("f", name="elsewhere")])])
    single = engine.submit("f").id or ""
    before = written(engine)
    adds: list[Callable[[TaskSpec], object]] = [
        lambda spec: engine.add_tasks(flow.stages[0], [spec]),
        lambda spec: engine.add_stage(flow.id, StageSpec("b", [spec])),
    ]
    for needed in ("nobody", "elsewhere", other.tasks[0], single, UNKNOWN_ID):
        for add in adds:
            with pytest.raises(InvalidInput) as refused:
                add(TaskSpec("f", depends_on=(needed,)))
            assert refused.value.field == "depends_on"
            assert needed in str(refused.value)
    assert written(engine) == before


def test_nothing_can_depend_on_the_task_that_decides_a_condition(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("f")], when=TaskSpec("f"))])
    control = take(engine)
    with pytest.raises(InvalidInput) as refused:
        engine.add_tasks(flow.stages[0], [TaskSpec("f", depends_on=(control.id,))])
    assert refused.value.field == "depends_on"


def test_a_new_task_may_name_what_it_needs_by_its_id(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("one")])])
    engine.add_tasks(flow.stages[0], [TaskSpec("two", depends_on=(flow.tasks[0].upper(),))])
    assert run_all(engine) == ["one", "two"]


def test_a_new_task_that_needs_a_success_can_run_at_once(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), TaskSpec("other")])])
    engine.succeed(take(engine))
    added = engine.add_tasks(flow.stages[0], [task("two", "one")])
    assert engine.task(added.tasks[0]).unmet == 0
    assert claimable(engine) == ["other", "two"]


@each_case("end", ENDS)
def test_a_new_task_that_needs_a_failure_is_cancelled_at_once(engine: Engine, clock: VirtualClock, end: str) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), TaskSpec("other")])], roll_up="drain")
    ENDS[end](engine, clock)
    added = engine.add_tasks(flow.stages[0], [task("two", "one"), task("three", "two")])
    assert [engine.task(id_).state for id_ in added.tasks] == ["cancelled", "cancelled"]
    assert last(engine, flow, added.tasks[0]).cause == "dependency_failed"
    assert run_all(engine) == ["other"]
    history(engine, flow)


def test_a_dependency_named_twice_counts_once(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), task("two", "one", "one")])])
    more = engine.add_tasks(flow.stages[0], [TaskSpec("three", depends_on=("one", flow.tasks[0]))])
    assert engine.task(more.tasks[0]).unmet == 1
    assert run_all(engine) == ["one", "two", "three"]


def test_a_long_chain_is_cancelled_to_its_end(engine: Engine) -> None:
    chain = [task("t0"), *(task(f"t{i}", f"t{i - 1}") for i in range(1, 60))]
    flow = engine.submit_flow("f", [StageSpec("a", chain)], roll_up="drain")
    engine.cancel(flow.tasks[0])
    assert set(tasks_of(engine, flow.stages[0])) == {"cancelled"}
    assert how(engine, flow) == ["cancelled", "cancelled"]


def test_cancelled_dependents_of_a_paused_flow_are_cancelled_too(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [task("one"), task("two", "one"), task("free")])], roll_up="drain")
    held = take(engine)
    engine.pause_flow(flow.id)
    engine.fail(held, "no", retryable=False)
    assert tasks_of(engine, flow.stages[0]) == ["failed", "cancelled", "queued"]
    assert claimable(engine) == []
    engine.resume_flow(flow.id)
    assert claimable(engine) == ["free"]
