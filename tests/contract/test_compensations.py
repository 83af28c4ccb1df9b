"""A compensation that fails becomes a dead letter, however it fails; and reasons that handlers name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.engines import must_verify
from tests.support.tasks import submit, take


def undoing(engine: Engine, **policy: Any) -> str:
    """A flow that has failed and is being undone. Returns the id of the task that undoes it."""
    undo = TaskSpec("undo", policy=Policy(**{"max_attempts": 1, **policy}))
    stages = [StageSpec("a", [TaskSpec("x")], compensate=undo), StageSpec("b", [TaskSpec("bad")])]
    flow = engine.submit_flow("f", stages)
    engine.succeed(take(engine))
    engine.fail(take(engine), "no", retryable=False)
    compensation = engine.flow(flow.id).compensation
    assert compensation is not None
    (stage,) = engine.stages(compensation)
    return engine.stage_tasks(stage.id)[0].id


def expires(engine: Engine, clock: VirtualClock, task: Assignment) -> None:
    engine.start(task)
    clock.advance(task.lease_s + 1)
    engine.sweep()


def times_out(engine: Engine, clock: VirtualClock, task: Assignment) -> None:
    engine.start(task)
    clock.advance(20)
    engine.sweep()


def pauses(engine: Engine, clock: VirtualClock, task: Assignment) -> None:
    engine.pause(task, owner="ann", reason="which account?")
    clock.advance(20)
    engine.sweep()


Ends = Callable[[Engine, VirtualClock, Assignment], object]
WAYS: dict[str, tuple[dict[str, Any], Ends]] = {
    "permanently": ({"max_attempts": 3}, lambda engine, _, task: engine.fail(task, "no", retryable=False)),
    "by its class": (
        {"max_attempts": 3},
        lambda engine, _, task: engine.fail(task, "no", error_class="PermanentError"),
    ),
    "exhausted": ({}, lambda engine, _, task: engine.fail(task, "no")),
    "exhausted, which fails": ({"on_exhaustion": "fail"}, lambda engine, _, task: engine.fail(task, "no")),
    "with a reason": ({}, lambda engine, _, task: engine.fail(task, "no", reason_code="policy_violation")),
    "lost": ({"lease_s": 5}, expires),
    "lost, which fails": ({"lease_s": 5, "on_exhaustion": "fail"}, expires),
    "timed out": ({"timeout_s": 10, "lease_s": 60}, times_out),
    "timed out, which fails": ({"timeout_s": 10, "lease_s": 60, "on_exhaustion": "fail"}, times_out),
    "too late while it runs": ({"deadline_s": 10, "lease_s": 60}, times_out),
    "too late while it waits for somebody": ({"deadline_s": 10, "lease_s": 60}, pauses),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_compensation_that_fails_is_a_dead_letter(engine: Engine, clock: VirtualClock, way: str) -> None:
    policy, end = WAYS[way]
    id_ = undoing(engine, **policy)
    end(engine, clock, take(engine))
    task = engine.task(id_)
    (letter,) = engine.dead_letters()
    assert (task.state, letter.task_id, letter.reason_code) == ("dead_lettered", id_, "compensation_failed")
    assert engine.flow(task.job_id).state == "failed"
    assert [e.type for e in engine.flow_events(task.job_id)].count("flow.compensation_failed") == 1
    must_verify(engine)


@pytest.mark.parametrize("limit", ["queue_ttl_s", "deadline_s"])
def test_a_compensation_that_nobody_claims_is_one_too(engine: Engine, clock: VirtualClock, limit: str) -> None:
    id_ = undoing(engine, **{limit: 10})
    clock.advance(11)
    engine.sweep()
    (letter,) = engine.dead_letters()
    assert (letter.task_id, letter.reason_code, letter.attempts) == (id_, "compensation_failed", 0)
    must_verify(engine)


def test_a_compensation_that_somebody_cancels_has_not_failed(engine: Engine) -> None:
    id_ = undoing(engine)
    engine.cancel(id_)
    assert (engine.task(id_).state, engine.dead_letters()) == ("cancelled", [])


def test_a_dead_compensation_is_redriven_under_the_same_key(engine: Engine) -> None:
    id_ = undoing(engine)
    engine.fail(take(engine), "no", retryable=False)
    engine.redrive(id_)
    task = take(engine)
    assert task.idempotency_key == id_
    engine.succeed(task)
    assert engine.flow(engine.task(task.id).job_id).state == "succeeded"
    must_verify(engine)


def test_a_reason_with_retries_is_that_of_the_dead_letter_after_them(engine: Engine) -> None:
    submit(engine, policy=Policy(max_attempts=2, backoff_base_s=0))
    why: dict[str, Any] = {"reason_code": "dependency_unavailable", "stage": "fetch", "retryable": True}
    engine.fail(take(engine), "down", **why)
    assert engine.dead_letters() == []
    engine.fail(take(engine), "down", **why)
    (letter,) = engine.dead_letters()
    assert (letter.reason_code, letter.stage, letter.attempts) == ("dependency_unavailable", "fetch", 2)
    must_verify(engine)
