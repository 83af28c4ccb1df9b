"""Reads that the tools of other systems need: aliases and dependencies by id, and lists by queue, kind and alias."""

from __future__ import annotations

from uuid_utils import uuid4

from onetray import Engine, StageSpec, TaskSpec
from onetray.domain.clock import VirtualClock
from onetray.domain.lifecycle import SUCCEEDED
from onetray.domain.listing import Alias, Dependency
from tests.support.drive import run
from tests.support.tasks import running


def test_aliases_by_id(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("s", [TaskSpec("x", alias="member"), TaskSpec("x")])], alias="flow")
    context = engine.append_context(flow.id, 1, alias="context")
    single = str(engine.submit("x", alias="single").id)
    other = str(engine.submit("x", alias="theirs", namespace="other").id)
    ids = [flow.id, *flow.tasks, context, single, other, str(uuid4())]
    assert sorted(engine.aliases_of(ids), key=lambda each: each.alias) == [
        Alias("context", "context", context, flow.id), Alias("flow", "flow", flow.id, flow.id),
        Alias("member", "task", flow.tasks[0], flow.id), Alias("single", "task", single, single),
    ]  # fmt: skip
    assert engine.aliases_of([other], namespace="other") == [Alias("theirs", "task", other, other)]
    assert engine.aliases_of([]) == []


def test_what_tasks_depend_on(engine: Engine) -> None:
    specs = [TaskSpec("x", name="a", alias="A"), TaskSpec("x", name="b"), TaskSpec("x", depends_on=("a", "b"))]
    flow = engine.submit_flow("f", [StageSpec("s", specs)])
    a, b, last = flow.tasks
    assert sorted(engine.dependencies(flow.tasks), key=lambda d: d.needs_alias or "") == [
        Dependency(last, b, None), Dependency(last, a, "A")
    ]  # fmt: skip
    assert engine.dependencies([a, b]) == engine.dependencies([]) == []
    assert engine.dependencies(flow.tasks, namespace="other") == []


def test_the_current_context_of_a_flow(engine: Engine) -> None:
    flow = engine.submit_flow("f", sealed=False)
    assert engine.flow(flow.id).context_id is None
    first = engine.append_context(flow.id, 1)
    engine.append_context(flow.id, 2, scope="task")
    assert engine.flow(flow.id).context_id == first


def test_pending_tasks_and_dead_letters_of_a_queue(engine: Engine) -> None:
    tasks = {queue: str(engine.submit("x", queue=queue, max_attempts=1).id) for queue in ("a", "b")}
    assert [task.id for task in engine.pending_tasks(queue="b")] == [tasks["b"]]
    assert engine.pending_tasks(queue="none") == []
    for queue in tasks:
        engine.fail(running(engine, queue=queue), "no")
    assert [line.id for line in engine.dead_lines(queue="b")] == [tasks["b"]]
    assert engine.dead_lines(queue="none") == []
    assert len(engine.dead_lines()) == 2


def test_sorted_jobs_with_an_alias_or_without(engine: Engine) -> None:
    named, plain = engine.submit("x", alias="a").id, engine.submit("x").id
    assert [job.id for job in engine.sorted_jobs(aliased=True)] == [named]
    assert [job.id for job in engine.sorted_jobs(aliased=False)] == [plain]
    assert len(engine.sorted_jobs()) == 2


def test_jobs_of_one_kind_are_pruned(engine: Engine, clock: VirtualClock) -> None:
    flows = [engine.submit_flow(name, [StageSpec("s", [TaskSpec("x")])]).id for name in ("a", "b")]
    run(engine)
    assert [engine.flow(flow).state for flow in flows] == [SUCCEEDED] * 2
    clock.advance(1)
    assert engine.prune_jobs(ended_before=clock.now(), kind="none") == []
    assert engine.prune_jobs(ended_before=clock.now(), kind="b") == [flows[1]]
    assert [flow.id for flow in engine.flows()] == [flows[0]]


def test_an_engine_says_whether_it_has_a_janitor(engine: Engine) -> None:
    assert engine.has_janitor is False
    engine.janitor()
    assert engine.has_janitor is True
