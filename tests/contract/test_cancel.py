"""Cancelling: softly, with a grace for the worker, or hard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import IllegalTransition
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, RUNNING, SUCCEEDED
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import in_state, last, running, settle, state, submit, take, types

HELD = ["assigned", "running"]


@each_case("hard", [False, True])
@each_case("start", ["queued", "blocked", "waiting_input"])
def test_what_nobody_holds_is_cancelled_at_once(engine: Engine, clock: VirtualClock, start: str, hard: bool) -> None:
    made = in_state(engine, start)
    receipt = engine.cancel(made.id, hard=hard, actor_name="ann", cause="changed her mind")
    assert (receipt.state, receipt.actions) == (CANCELLED, ("retry", "redrive"))
    task, event = engine.task(made.id), last(engine, made.id)
    assert (task.finished_at, task.held_by, task.held_why) == (clock.now(), None, None)
    assert (event.actor, event.cause, event.was) == ("user:ann", "changed her mind", start)
    assert engine.claim(worker="w") == []


def test_a_delayed_task_is_cancelled_and_never_promoted(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, delay_s=10)
    engine.cancel(id_)
    clock.advance(20)
    settle(engine)
    assert engine.claim(worker="w") == []
    assert engine.store.read_sql("SELECT task FROM onetray.ready") == []


@each_case("start", HELD)
def test_a_hard_cancel_takes_the_task_from_its_holder(engine: Engine, start: str) -> None:
    made = in_state(engine, start)
    engine.cancel(made.id, hard=True)
    task = engine.task(made.id)
    assert (task.state, task.owner, task.lease) == (CANCELLED, None, None)
    assert last(engine, made.id).payload["owner"] == "w"
    with pytest.raises(IllegalTransition):
        engine.succeed(**made.ticket)


@each_case("start", HELD)
def test_a_soft_cancel_asks_the_holder_to_stop(engine: Engine, clock: VirtualClock, start: str) -> None:
    made = in_state(engine, start)
    receipt = engine.cancel(made.id, actor_name="ann", cause="too late")
    task, note = engine.task(made.id), last(engine, made.id)
    assert receipt.state == task.state == start
    assert task.cancel_requested_at == clock.now()
    assert (note.type, note.actor, note.cause) == ("task.cancel_requested", "user:ann", "too late")
    assert (note.version, note.state, note.payload) == (None, None, {"grace_s": 30.0})


def test_a_second_soft_cancel_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    made = in_state(engine, "running")
    engine.cancel(made.id)
    asked_at = clock.now()
    clock.advance(5)
    assert engine.cancel(made.id).repeated
    assert engine.task(made.id).cancel_requested_at == asked_at
    assert types(engine, made.id).count("cancel_requested") == 1


def test_a_hard_cancel_may_follow_a_soft_one(engine: Engine) -> None:
    made = in_state(engine, "running")
    engine.cancel(made.id)
    assert engine.cancel(made.id, hard=True).state == CANCELLED


@each_case("start", HELD)
@each_case("grace", ["default", "policy", "command"])
def test_after_the_grace_the_task_is_cancelled(engine: Engine, clock: VirtualClock, start: str, grace: str) -> None:
    policy = Policy(lease_s=1000, cancel_grace_s=7 if grace == "policy" else 30)
    made = in_state(engine, start, policy=policy)
    engine.cancel(made.id, grace_s=3 if grace == "command" else None)
    seconds = {"default": 30, "policy": 7, "command": 3}[grace]
    clock.advance(seconds - 0.000001)
    settle(engine)
    assert state(engine, made.id) == start
    clock.advance(0.000001)
    settle(engine)
    assert state(engine, made.id) == CANCELLED
    assert last(engine, made.id).actor == "system:janitor"


def test_a_heartbeat_does_not_extend_the_grace(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    engine.cancel(id_)
    for _ in range(3):
        clock.advance(10)
        assert engine.beat(held).cancel == (id_,)
    settle(engine)
    assert state(engine, id_) == CANCELLED


@each_case("start", HELD)
def test_after_a_soft_cancel_a_success_counts(engine: Engine, clock: VirtualClock, start: str) -> None:
    made = in_state(engine, start)
    engine.cancel(made.id)
    engine.succeed(result=1, **made.ticket)
    clock.advance(100)
    settle(engine)
    assert (state(engine, made.id), engine.task(made.id).result) == (SUCCEEDED, 1)


AFTER: dict[str, Callable[[Engine, Assignment], object]] = {
    "fail": lambda e, a: e.fail(a, "stopped"),
    "fail for good": lambda e, a: e.fail(a, "stopped", retryable=False),
    "fail with a reason": lambda e, a: e.fail(a, "stopped", reason_code="timeout"),
    "release": lambda e, a: e.release(a),
    "block": lambda e, a: e.pause(a, owner="ann", reason="sign"),
    "wait for input": lambda e, a: e.pause(a, state="waiting_input", owner="ann", reason="sign"),
}


@each_case("start", HELD)
@each_case("report", AFTER)
def test_after_a_soft_cancel_the_task_is_cancelled_by(engine: Engine, start: str, report: str) -> None:
    id_ = submit(engine)
    held = take(engine) if start == "assigned" else running(engine)
    engine.cancel(id_)
    AFTER[report](engine, held)
    event = last(engine, id_)
    assert (event.type, event.was, event.state) == ("task.cancelled", start, CANCELLED)
    assert event.actor.startswith("system:")
    assert engine.claim(worker="w") == []
    assert AFTER[report](engine, held).repeated  # type: ignore[attr-defined]


@each_case("start", HELD)
def test_after_a_soft_cancel_the_task_is_cancelled_by_expiry(engine: Engine, clock: VirtualClock, start: str) -> None:
    made = in_state(engine, start, policy=Policy(cancel_grace_s=1000))
    engine.cancel(made.id)
    clock.advance(61)
    settle(engine)
    assert state(engine, made.id) == CANCELLED


@each_case("limit", ["timeout_s", "deadline_s"])
def test_after_a_soft_cancel_the_task_is_cancelled_by_a_limit(engine: Engine, clock: VirtualClock, limit: str) -> None:
    made = in_state(engine, "running", policy=Policy(cancel_grace_s=1000, **{limit: 10}))
    engine.cancel(made.id)
    clock.advance(11)
    settle(engine)
    assert state(engine, made.id) == CANCELLED


def test_after_a_soft_cancel_a_start_still_counts(engine: Engine) -> None:
    made = in_state(engine, "assigned")
    engine.cancel(made.id)
    assert engine.start(**made.ticket).state == RUNNING


def test_a_policy_violation_buries_a_task_that_was_asked_to_stop(engine: Engine) -> None:
    made = in_state(engine, "running")
    engine.cancel(made.id)
    assert engine.dead_letter(made.id, "policy_violation").state == DEAD_LETTERED


def test_cancelled_tasks_have_an_end(engine: Engine, clock: VirtualClock) -> None:
    made = in_state(engine, "running")
    clock.advance(2)
    engine.cancel(made.id, hard=True)
    task = engine.task(made.id)
    assert task.started_at is not None
    assert task.finished_at == task.started_at + 2 * SECOND
