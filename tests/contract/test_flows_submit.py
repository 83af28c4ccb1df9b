"""How a flow comes to be: whole, or grown stage by stage; its keys, its limits, and when it ends by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, InvalidInput, NameTaken, NotFound
from onetray.domain.flow import Placed, StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.flows import history, how, run_all, types
from tests.support.tasks import UNKNOWN_ID, settle, take, written


def two(**fields: Any) -> list[StageSpec]:
    return [StageSpec("a", [TaskSpec("x"), TaskSpec("x")], **fields), StageSpec("b", [TaskSpec("y")])]


def test_a_whole_flow_runs_its_stages_in_order_and_ends_with_the_last(engine: Engine) -> None:
    flow = engine.submit_flow("f", two(), data={"k": 1}, metadata=[2], correlation_id="order-7")
    assert (flow.entity, flow.state, len(flow.stages), len(flow.tasks)) == ("flow", "pending", 2, 3)
    assert how(engine, flow) == ["pending", "pending", "created"]
    assert run_all(engine) == ["x", "x", "y"]
    assert how(engine, flow) == ["succeeded"] * 3
    assert types(engine, flow, flow.id) == ["flow.submitted", "flow.opened", "flow.started", "flow.succeeded"]
    seen = engine.flow(flow.id)
    assert (seen.name, seen.data, seen.metadata, seen.correlation_id) == ("f", {"k": 1}, [2], "order-7")
    assert seen.started_at is not None
    assert {e.correlation_id for e in history(engine, flow)} == {"order-7"}


def test_the_stages_and_tasks_are_answered_in_the_order_they_were_given_in(engine: Engine) -> None:
    stages = [
        StageSpec(f"s{i}", [TaskSpec("x", [i, j]) for j in range(3)], data=i, metadata={"m": i}) for i in range(4)
    ]
    flow = engine.submit_flow("f", stages)
    found = [engine.stage(id_) for id_ in flow.stages]
    assert [(s.order, s.name, s.data, s.metadata) for s in found] == [(i + 1, f"s{i}", i, {"m": i}) for i in range(4)]
    assert [engine.task(id_).payload for id_ in flow.tasks] == [[i, j] for i in range(4) for j in range(3)]
    assert {(t.job_id, t.stage_id) for t in engine.stage_tasks(flow.stages[1])} == {(flow.id, flow.stages[1])}


def test_a_claim_alone_starts_neither_the_stage_nor_the_flow(engine: Engine) -> None:
    flow = engine.submit_flow("f", two())
    held = take(engine)
    assert how(engine, flow) == ["pending", "pending", "created"]
    engine.start(held)
    assert how(engine, flow) == ["running", "running", "created"]


def test_a_flow_that_is_not_to_start_waits_until_it_is_opened(engine: Engine) -> None:
    flow = engine.submit_flow("f", two(), start=False)
    assert how(engine, flow) == ["created"] * 3
    assert run_all(engine) == []
    assert engine.open_flow(flow.id, actor_name="ann").state == "pending"
    assert engine.open_flow(flow.id).repeated
    assert run_all(engine) == ["x", "x", "y"]
    opened = [e for e in history(engine, flow) if e.type == "flow.opened"]
    assert [e.actor for e in opened] == ["user:ann"]


def test_a_flow_that_has_ended_cannot_be_opened(engine: Engine) -> None:
    flow = engine.submit_flow("f", two())
    run_all(engine)
    with pytest.raises(IllegalTransition) as refused:
        engine.open_flow(flow.id)
    assert (refused.value.facts["from"], refused.value.allowed) == ("succeeded", ["retry"])


@each_case(("sealed", "state"), [(True, "succeeded"), (None, "pending"), (False, "pending")])
def test_a_flow_without_stages_ends_at_once_only_when_it_is_sealed(engine: Engine, sealed: Any, state: str) -> None:
    flow = engine.submit_flow("f", sealed=sealed)
    assert flow.state == how(engine, flow)[0] == state
    if state == "pending":
        assert engine.seal_flow(flow.id).state == "succeeded"


def test_an_unsealed_flow_takes_stages_until_it_is_sealed(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    for name in ("a", "b", "c"):
        engine.add_stage(flow.id, StageSpec(name, [TaskSpec(name)]))
        assert run_all(engine) == [name]
        assert how(engine, flow)[0] == "running"
    assert engine.seal_flow(flow.id).state == "succeeded"
    assert types(engine, flow, flow.id).count("flow.sealed") == 1
    with pytest.raises(IllegalTransition):
        engine.add_stage(flow.id, StageSpec("d"))
    with pytest.raises(IllegalTransition):
        engine.seal_flow(flow.id)


def test_a_flow_that_was_not_said_to_grow_may_grow_while_it_runs(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")])])
    added = engine.add_stage(flow.id, StageSpec("b", [TaskSpec("y")]))
    assert (added.state, engine.stage(added.id).order, len(added.tasks)) == ("created", 2, 1)
    assert run_all(engine) == ["x", "y"]
    assert how(engine, flow) == ["succeeded"] * 3


def test_a_stage_of_a_growing_flow_waits_for_its_first_task(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    stage = engine.add_stage(flow.id, StageSpec("a"))
    assert stage.state == "pending"
    more = engine.add_tasks(stage.id, [TaskSpec("x"), TaskSpec("y")])
    assert (more.id, len(more.tasks)) == (stage.id, 2)
    assert run_all(engine) == ["x", "y"]
    assert engine.stage(stage.id).state == "succeeded"


def test_an_unsealed_stage_ends_only_once_it_is_sealed(engine: Engine) -> None:
    flow = engine.submit_flow("f", two(sealed=False))
    run_all(engine)
    assert how(engine, flow) == ["running", "running", "created"]
    engine.add_tasks(flow.stages[0], [TaskSpec("z")])
    assert run_all(engine) == ["z"]
    assert engine.seal_stage(flow.stages[0]).state == "succeeded"
    assert run_all(engine) == ["y"]
    assert how(engine, flow)[0] == "succeeded"


def test_sealing_a_stage_while_a_task_of_it_runs_ends_it_with_that_task(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x")], sealed=False)])
    held = take(engine)
    assert engine.seal_stage(flow.stages[0]).state == "pending"
    engine.succeed(held)
    assert how(engine, flow) == ["succeeded", "succeeded"]


def test_an_empty_stage_of_a_whole_flow_is_skipped_and_does_not_spoil_it(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a"), StageSpec("b", [TaskSpec("y")]), StageSpec("c")])
    assert how(engine, flow) == ["pending", "skipped", "pending", "created"]
    run_all(engine)
    assert how(engine, flow) == ["succeeded", "skipped", "succeeded", "skipped"]
    history(engine, flow)


def test_a_flow_of_empty_stages_ends_as_it_is_submitted(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a"), StageSpec("b")])
    assert flow.state == "succeeded"
    assert how(engine, flow) == ["succeeded", "skipped", "skipped"]


def test_a_stage_that_takes_no_more_refuses_tasks_once_it_runs(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x"), TaskSpec("x")], takes_more=False)])
    engine.add_tasks(flow.stages[0], [TaskSpec("z")])
    engine.start(take(engine))
    before = written(engine)
    with pytest.raises(IllegalTransition, match="takes no more"):
        engine.add_tasks(flow.stages[0], [TaskSpec("z")])
    assert written(engine) == before


def test_a_stage_or_flow_that_has_ended_takes_nothing_more(engine: Engine) -> None:
    flow = engine.submit_flow("f", two(), sealed=False)
    take(engine)
    engine.succeed(engine.stage_tasks(flow.stages[0])[0].id)
    engine.succeed(take(engine))
    before = written(engine)
    with pytest.raises(IllegalTransition) as refused:
        engine.add_tasks(flow.stages[0], [TaskSpec("x")])
    assert refused.value.facts["from"] == "succeeded"
    with pytest.raises(IllegalTransition):
        engine.seal_stage(flow.stages[0])
    assert written(engine) == before


def test_names_are_taken_once_in_a_flow(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="one")])], sealed=False)
    before = written(engine)
    with pytest.raises(NameTaken) as refused:
        engine.add_stage(flow.id, StageSpec("a"))
    assert refused.value.name == "a"
    adds: list[Callable[[], object]] = [
        lambda: engine.add_tasks(flow.stages[0], [TaskSpec("x", name="one")]),
        lambda: engine.add_stage(flow.id, StageSpec("b", [TaskSpec("x", name="one")])),
    ]
    for add in adds:
        with pytest.raises(NameTaken) as refused:
            add()
        assert refused.value.name == "one"
    with pytest.raises(InvalidInput, match="'two'"):
        engine.add_tasks(flow.stages[0], [TaskSpec("x", name="two"), TaskSpec("x", name="two")])
    assert written(engine) == before
    other = engine.submit_flow("f", [StageSpec("a", [TaskSpec("x", name="one")])])
    assert len(other.tasks) == 1


def test_an_unknown_flow_or_stage_or_one_of_another_namespace_is_not_found(engine: Engine) -> None:
    flow = engine.submit_flow("f", two(), namespace="mine")
    for id_, where in ((UNKNOWN_ID, {}), (flow.id, {}), (flow.stages[0], {"namespace": "mine"})):
        with pytest.raises(NotFound, match="no flow"):
            engine.pause_flow(id_, **where)
    for id_, where in ((UNKNOWN_ID, {}), (flow.stages[0], {}), (flow.id, {"namespace": "mine"})):
        with pytest.raises(NotFound, match="no stage"):
            engine.add_tasks(id_, [TaskSpec("x")], **where)
    assert engine.claim(worker="w") == []
    assert len(engine.claim(worker="w", namespace="mine", limit=9)) == 2
    assert engine.flows() == []


def test_tasks_of_a_stage_keep_their_queue_priority_delay_and_policy(engine: Engine, clock: VirtualClock) -> None:
    tasks = [
        TaskSpec("x", queue="side", max_attempts=7),
        TaskSpec("x", "late", delay_s=60),
        TaskSpec("x", "low", priority=-1),
        TaskSpec("x", "high", priority=5, policy=Policy(lease_s=7, heartbeat_s=4)),
    ]
    flow = engine.submit_flow("f", [StageSpec("a", tasks)])
    assert [t.payload for t in engine.claim(worker="w", limit=9)] == ["high", "low"]
    assert engine.task(flow.tasks[0]).max_attempts == 7
    assert engine.task(flow.tasks[3]).policy.lease_s == 7
    assert len(engine.claim("side", worker="w", limit=9)) == 1
    clock.advance(61)
    settle(engine)
    assert "late" in [t.payload for t in engine.claim(worker="w", limit=9)]


def test_orders_are_unique_when_many_threads_add_stages_at_once(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    barrier, placed, broken = threading.Barrier(8), list[Placed](), list[Exception]()

    def add(worker: int) -> None:
        try:
            barrier.wait(30)
            for i in range(6):
                placed.append(engine.add_stage(flow.id, StageSpec(f"{worker}-{i}", [TaskSpec("x")])))
        except Exception as e:
            broken.append(e)

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert broken == []
    stages = engine.stages(flow.id)
    assert [s.order for s in stages] == list(range(1, 49))
    assert {s.id for s in stages} == {p.id for p in placed}
    assert [s.state for s in stages] == ["pending", *["created"] * 47]
    assert len(run_all(engine)) == 48
    assert engine.seal_flow(flow.id).state == "succeeded"
