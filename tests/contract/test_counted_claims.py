"""Claims whose expiry counts as an attempt, though the task was never started: one task for one caller, no prefetch."""

from __future__ import annotations

import pytest

from onetray import StageSpec, TaskSpec
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import LeaseLost
from onetray.domain.lifecycle import ASSIGNED, DEAD_LETTERED, FAILED, QUEUED, SUCCEEDED
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.listening import register
from tests.support.tasks import settle, state, submit, take, types

ONCE = Policy(max_attempts=1)


def expire(engine: Engine, clock: VirtualClock, after_s: float = 61) -> None:
    clock.advance(after_s)
    settle(engine)


def test_a_claim_whose_expiry_counts_uses_up_a_budget_of_one(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=ONCE)
    held = take(engine, expiry_counts=True)
    expire(engine, clock)
    assert state(engine, id_) == DEAD_LETTERED
    assert engine.claim(worker="w2") == []
    (letter,) = engine.dead_letters(id_)
    assert (letter.reason_code, letter.stage, letter.attempts) == ("exhausted_retries", "fetch", 1)
    assert (letter.last_owner, letter.last_lease_expires_at) == ("w", held.lease_expires_at)
    assert letter.last_error["class"] == "LeaseExpired"
    assert types(engine, id_) == ["submitted", "claimed", "dead_lettered"]


def test_by_default_the_attempt_of_such_a_task_is_returned(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=ONCE)
    take(engine)
    expire(engine, clock)
    assert (state(engine, id_), engine.task(id_).attempts) == (QUEUED, 0)


def test_without_dead_letters_the_task_fails_from_assigned(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=ONCE.with_(on_exhaustion="fail"))
    take(engine, expiry_counts=True)
    expire(engine, clock)
    task = engine.task(id_)
    assert (task.state, task.started_at) == (FAILED, None)
    assert task.error is not None
    assert task.error["class"] == "LeaseExpired"
    event = engine.events(id_)[-1]
    assert (event.type, event.was, event.cause) == ("task.failed", ASSIGNED, "exhausted_retries")
    assert event.payload["reason"] == "exhausted_retries"


def test_with_attempts_left_it_is_queued_after_the_backoff(engine: Engine, clock: VirtualClock) -> None:
    register(engine)
    id_ = submit(engine, policy=Policy(max_attempts=2, backoff_base_s=10, jitter=False))
    take(engine, expiry_counts=True)
    expire(engine, clock)
    task = engine.task(id_)
    assert (task.state, task.attempts, task.fence) == (QUEUED, 1, 2)
    assert task.run_at == clock.now() + 10 * SECOND
    (reason,) = engine.explain(id_)
    assert (reason.code, reason.facts["attempts"]) == ("backing_off", 1)
    event = engine.events(id_)[-1]
    assert (event.type, event.payload["given_back"], event.attempts) == ("task.lease_expired", False, 1)
    expire(engine, clock, 11)
    assert take(engine, worker="w2", expiry_counts=True).attempt == 2
    expire(engine, clock)
    assert state(engine, id_) == DEAD_LETTERED


def test_counted_and_returned_attempts_do_not_mix_up(engine: Engine, clock: VirtualClock) -> None:
    """Each claim says for itself what its expiry means."""
    id_ = submit(engine, policy=Policy(max_attempts=2, backoff_base_s=0, jitter=False))
    take(engine)
    expire(engine, clock)
    take(engine, expiry_counts=True)
    expire(engine, clock)
    take(engine)
    expire(engine, clock)
    assert engine.task(id_).attempts == 1
    take(engine, expiry_counts=True)
    expire(engine, clock)
    assert state(engine, id_) == DEAD_LETTERED


def test_release_and_pause_still_return_the_attempt(engine: Engine) -> None:
    id_ = submit(engine, policy=ONCE)
    engine.release(take(engine, expiry_counts=True))
    engine.pause(take(engine, expiry_counts=True), owner="ann", reason="asks")
    engine.resume(id_)
    engine.succeed(take(engine, expiry_counts=True))
    assert (state(engine, id_), engine.task(id_).attempts) == (SUCCEEDED, 1)


def test_a_repeated_claim_keeps_what_the_first_one_said(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=ONCE)
    take(engine, expiry_counts=True, request_key="r1")
    take(engine, request_key="r1")
    expire(engine, clock)
    assert state(engine, id_) == DEAD_LETTERED


def test_the_expiry_of_a_member_that_never_started_ends_its_flow(engine: Engine, clock: VirtualClock) -> None:
    for on_exhaustion, how in (("dead_letter", DEAD_LETTERED), ("fail", FAILED)):
        spec = TaskSpec("mail", policy=ONCE.with_(on_exhaustion=on_exhaustion))
        flow = engine.submit_flow("report", [StageSpec("all", [spec])])
        held = take(engine, expiry_counts=True)
        expire(engine, clock)
        assert (state(engine, held.id), engine.flow(flow.id).state) == (how, FAILED)


def test_a_lease_of_ten_milliseconds_is_kept_renewed_and_lost(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=ONCE)
    held = take(engine, lease_s=0.01, expiry_counts=True)
    assert held.lease_expires_at == clock.now() + 10_000
    clock.advance(0.01)
    assert engine.expire_leases() == []
    assert engine.beat(held, lease_s=0.01).lease_expires_at == clock.now() + 10_000
    clock.advance(0.010001)
    with pytest.raises(LeaseLost):
        engine.succeed(held)
    assert engine.expire_leases() == [held.key]
    assert state(engine, id_) == DEAD_LETTERED
