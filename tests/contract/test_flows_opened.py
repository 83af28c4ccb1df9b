"""A flow that is submitted empty and opens with its first task: one transition, one event."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onetray import Engine, NotFound, StageSpec, TaskSpec
from onetray.domain import flow_commands as fc
from onetray.domain.errors import DependencyCycle, IllegalTransition, InvalidInput
from onetray.domain.flow import Placed
from onetray.domain.lifecycle import CANCELLED, CREATED, PENDING, RUNNING, SUCCEEDED
from tests.support.tasks import take


def new_run(engine: Engine, **fields: Any) -> Placed:
    """An empty flow with one stage: it has no task yet."""
    return engine.submit_flow("run", [StageSpec("tasks", sealed=False)], roll_up="drain", start=False, **fields)


def moves(engine: Engine, run: Placed) -> list[tuple[str, str | None, str | None]]:
    events = engine.flow_events(run.id)
    return [(e.type, e.was, e.state) for e in events if e.entity_id == run.id and e.version is not None]


def test_the_first_task_opens_the_flow_and_the_event_says_so(engine: Engine) -> None:
    run = new_run(engine)
    assert engine.flow(run.id).state == CREATED
    engine.add_tasks(run.stages[0], [TaskSpec("mail")], open=True, actor_name="ann", cause="enqueue")
    assert engine.flow(run.id).state == PENDING
    engine.add_tasks(run.stages[0], [TaskSpec("mail")], open=True)
    assert moves(engine, run) == [("flow.submitted", None, CREATED), ("flow.opened", CREATED, PENDING)]
    opened = next(e for e in engine.flow_events(run.id) if e.type == "flow.opened")
    first = next(e for e in engine.flow_events(run.id) if e.type == "task.submitted")
    assert (opened.actor, opened.cause, opened.id > first.id) == ("user:ann", "enqueue", True)
    for held in engine.claim(worker="w", limit=5):
        engine.succeed(held)
    engine.seal_stage(run.stages[0])
    assert moves(engine, run)[2:] == [("flow.started", PENDING, RUNNING), ("flow.succeeded", RUNNING, SUCCEEDED)]


def test_a_task_that_is_refused_opens_nothing(engine: Engine) -> None:
    run = new_run(engine)
    refused: list[tuple[TaskSpec, type[Exception]]] = [
        (TaskSpec("mail", depends_on=("nobody",)), InvalidInput), (TaskSpec("mail", context_id="none"), NotFound),
        (TaskSpec("mail", name="a", depends_on=("a",)), DependencyCycle),
    ]  # fmt: skip
    for spec, error in refused:
        with pytest.raises(error):
            engine.add_tasks(run.stages[0], [spec], open=True)
    assert moves(engine, run) == [("flow.submitted", None, CREATED)]


def test_without_it_tasks_wait_until_the_flow_is_opened(engine: Engine) -> None:
    run = new_run(engine)
    (task,) = engine.add_tasks(run.stages[0], [TaskSpec("mail")]).tasks
    assert (engine.flow(run.id).state, engine.claim(worker="w")) == (CREATED, [])
    assert engine.explain(task)[0].code == "flow_not_opened"
    engine.add_tasks(run.stages[0], [TaskSpec("mail")], open=True)
    assert len(engine.claim(worker="w", limit=5)) == 2


def test_a_stage_opens_the_flow_too(engine: Engine) -> None:
    run = engine.submit_flow("run", start=False)
    engine.add_stage(run.id, StageSpec("tasks", [TaskSpec("mail")]), open=True)
    assert engine.flow(run.id).state == PENDING
    engine.succeed(take(engine))
    assert engine.flow(run.id).state == SUCCEEDED


def test_a_flow_that_has_ended_is_not_opened(engine: Engine) -> None:
    run = new_run(engine)
    engine.cancel_flow(run.id)
    with pytest.raises(IllegalTransition):
        engine.add_tasks(run.stages[0], [TaskSpec("mail")], open=True)
    assert engine.flow(run.id).state == CANCELLED


def test_many_first_tasks_at_once_open_it_once(engine: Engine) -> None:
    run = new_run(engine)
    together = threading.Barrier(8)

    def enqueue() -> None:
        together.wait(10)
        engine.add_tasks(run.stages[0], [TaskSpec("mail")], open=True)

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [move[0] for move in moves(engine, run)] == ["flow.submitted", "flow.opened"]
    assert len(engine.claim(worker="w", limit=20)) == 8


def test_two_in_one_batch_open_it_once(engine: Engine) -> None:
    run = new_run(engine)
    verdicts = engine.run([fc.AddTasks(run.stages[0], tasks=[TaskSpec("mail")], open=True) for _ in range(2)])
    assert all(verdict.ok for verdict in verdicts)
    assert [move[0] for move in moves(engine, run)] == ["flow.submitted", "flow.opened"]
