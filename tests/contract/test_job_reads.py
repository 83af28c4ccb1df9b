"""Reads about jobs of either sort: where one stands, its own events, many with what belongs to them."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import UNKNOWN_ID, submit, take


def test_the_status_of_a_job_says_what_it_is_and_what_may_be_done(engine: Engine) -> None:
    task, flow = submit(engine), engine.submit_flow("f", [StageSpec("a", [TaskSpec("k")])])
    one, other = engine.job_status(task.upper()), engine.job_status(flow.id)
    assert (one.entity, one.id, one.state, one.queue) == ("task", task, "queued", "default")
    assert (other.entity, other.id, other.queue) == ("flow", flow.id, None)
    assert (one.actions, other.actions) == (engine.task(task).actions, engine.flow(flow.id).actions)
    with pytest.raises(NotFound):
        engine.job_status(UNKNOWN_ID)
    with pytest.raises(NotFound):
        engine.job_status(task, namespace="elsewhere")


def test_the_own_events_of_a_flow_are_its_and_its_stages_and_of_a_task_all(engine: Engine) -> None:
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("k")]), StageSpec("b", [TaskSpec("k")])])
    held = take(engine)
    engine.succeed(held)
    every = engine.flow_events(flow.id)
    assert engine.own_events(flow.id) == [e for e in every if not e.type.startswith("task.")]
    assert engine.own_events(held.id) == engine.events(held.id)
    first, *rest = engine.own_events(flow.id)
    assert engine.own_events(flow.id, after=first.id) == rest


def test_details_come_newest_first_with_lines_stages_and_the_first_start(engine: Engine) -> None:
    id_ = submit(engine, payload=1)
    held = take(engine)
    engine.start(held)
    engine.log(held, "one", "two", "three")
    first = engine.task(id_).started_at
    engine.release(held)
    engine.succeed(take(engine), 2)
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("k")])])
    engine.succeed(take(engine), 3)
    keys = [job.key for job in engine.jobs().jobs]
    newer, older = engine.job_details(keys, lines=2)
    assert (newer.job.id, [stage.name for stage in newer.stages]) == (flow.id, ["a"])
    assert (older.job, [line.line for line in older.lines]) == (engine.task(id_), ["one", "two"])
    assert older.first_started_at == first


def test_details_are_of_one_namespace_whatever_keys_are_asked_for(engine: Engine) -> None:
    ours, theirs = submit(engine), submit(engine, namespace="theirs")
    flow = engine.submit_flow("f", [StageSpec("a", [TaskSpec("k")])], namespace="theirs")
    jobs: list[Any] = [engine.task(ours), engine.task(theirs, namespace="theirs")]
    keys = [job.key for job in [*jobs, engine.flow(flow.id, namespace="theirs")]]
    assert [each.job.id for each in engine.job_details(keys)] == [ours]
    assert engine.job_details(keys, namespace="nobodys") == []


@each_case("keys", [5, ["x"], [0], [2**63], list(range(1, 102))])
def test_keys_that_are_none_or_too_many_are_refused(engine: Engine, keys: Any) -> None:
    with pytest.raises(InvalidInput):
        engine.job_details(keys)
