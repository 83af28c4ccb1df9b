"""Pausing: a task gives up its lease and waits for somebody who is named."""

from __future__ import annotations

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import IllegalTransition, InvalidInput
from onetray.domain.lifecycle import FAILED, QUEUED
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import in_state, last, running, settle, state, submit, take

PAUSED = pytest.mark.parametrize("paused", ["blocked", "waiting_input"])


@PAUSED
@pytest.mark.parametrize("start", ["assigned", "running"])
def test_a_pause_keeps_who_must_resume_it_and_why(engine: Engine, paused: str, start: str) -> None:
    made = in_state(engine, start)
    engine.pause(state=paused, owner="ann", reason="needs her signature", **made.ticket)
    task, event = engine.task(made.id), last(engine, made.id)
    assert (task.state, task.held_by, task.held_why) == (paused, "ann", "needs her signature")
    assert (task.owner, task.lease, task.lease_expires_at) == (None, None, None)
    assert (event.cause, event.payload["held_by"], event.payload["owner"]) == ("needs her signature", "ann", "w")
    assert task.actions == ("resume", "cancel")


@PAUSED
def test_a_paused_task_is_not_claimed_and_does_not_expire(engine: Engine, clock: VirtualClock, paused: str) -> None:
    made = in_state(engine, paused)
    clock.advance(100_000)
    settle(engine)
    assert engine.claim(worker="w") == []
    assert state(engine, made.id) == paused


@PAUSED
def test_a_resume_opens_the_next_attempt(engine: Engine, paused: str) -> None:
    made = in_state(engine, paused)
    receipt = engine.resume(made.id, actor_name="ann", cause="signed")
    task, event = engine.task(made.id), last(engine, made.id)
    assert (receipt.state, receipt.fence) == (QUEUED, 2)
    assert (task.held_by, task.held_why) == (None, None)
    assert (event.actor, event.cause, event.was) == ("user:ann", "signed", paused)
    assert take(engine).fence == 2


def test_the_worker_gets_what_the_resume_brought(engine: Engine) -> None:
    made = in_state(engine, "waiting_input", payload={"form": 1})
    engine.resume(made.id, input={"answer": ["yes", None]})
    held = take(engine)
    assert (held.payload, held.input) == ({"form": 1}, {"answer": ["yes", None]})
    assert engine.task(made.id).input == {"answer": ["yes", None]}


def test_a_resume_without_input_keeps_the_earlier_one(engine: Engine) -> None:
    made = in_state(engine, "waiting_input")
    engine.resume(made.id, input="first")
    engine.pause(running(engine), owner="bob", reason="and you")
    engine.resume(made.id)
    assert take(engine).input == "first"


@PAUSED
def test_a_deadline_ends_a_paused_task(engine: Engine, clock: VirtualClock, paused: str) -> None:
    made = in_state(engine, paused, policy=Policy(deadline_s=50))
    clock.advance(49.9)
    settle(engine)
    assert state(engine, made.id) == paused
    clock.advance(0.1)
    settle(engine)
    task = engine.task(made.id)
    assert (task.state, task.held_by, task.held_why) == (FAILED, None, None)
    assert last(engine, made.id).was == paused


@PAUSED
def test_a_resume_twice_is_refused(engine: Engine, paused: str) -> None:
    made = in_state(engine, paused)
    engine.resume(made.id)
    with pytest.raises(
        IllegalTransition, match="the task is queued and cannot be resumed; allowed to a user now: cancel"
    ):
        engine.resume(made.id)


@each_case("field", ["owner", "reason"])
def test_a_pause_names_its_owner_and_its_reason(engine: Engine, field: str) -> None:
    made = in_state(engine, "running")
    fields = {"owner": "ann", "reason": "sign", field: ""}
    with pytest.raises(InvalidInput) as refused:
        engine.pause(**made.ticket, **fields)
    assert refused.value.field == field


def test_the_fence_of_before_the_pause_is_void_after_it(engine: Engine) -> None:
    submit(engine)
    old = running(engine, worker="w")
    engine.pause(old, owner="ann", reason="sign")
    engine.resume(old.id)
    new = take(engine, worker="w")
    verdict = engine.run([c.Succeed(**c.ticket(old))])[0]
    assert verdict.error is not None
    assert verdict.error.code == "lease_lost"
    engine.succeed(new)
