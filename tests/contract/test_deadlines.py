"""Limits in time: in the queue, for one attempt, and for the whole task."""

from __future__ import annotations

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.lifecycle import DEAD_LETTERED, FAILED, QUEUED, RUNNING
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import in_state, last, running, settle, state, submit, take, types


def test_a_task_that_waits_too_long_in_the_queue_fails(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(queue_ttl_s=10))
    clock.advance(9.999999)
    settle(engine)
    assert state(engine, id_) == QUEUED
    clock.advance(0.000001)
    settle(engine)
    task, event = engine.task(id_), last(engine, id_)
    assert (task.state, task.finished_at) == (FAILED, clock.now())
    assert (event.type, event.cause, event.actor) == ("task.timed_out", "queue_ttl", "system:janitor")
    assert event.payload == {"reason": "timeout", "limit": "queue_ttl"}
    assert task.error is not None
    assert task.error["class"] == "Timeout"
    assert engine.claim(worker="w") == []


def test_the_time_in_the_queue_begins_when_the_task_may_run(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, delay_s=100, policy=Policy(queue_ttl_s=10))
    clock.advance(109)
    settle(engine)
    assert state(engine, id_) == QUEUED
    clock.advance(1)
    settle(engine)
    assert state(engine, id_) == FAILED


def test_each_return_to_the_queue_has_its_own_time(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(queue_ttl_s=10))
    for _ in range(3):
        clock.advance(8)
        settle(engine)
        held = running(engine)
        clock.advance(8)
        settle(engine)
        assert state(engine, id_) == RUNNING
        engine.release(held)
    clock.advance(10)
    settle(engine)
    assert state(engine, id_) == FAILED


def test_a_rescheduled_task_waits_anew(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(queue_ttl_s=10))
    engine.reschedule(id_, delay_s=100)
    clock.advance(50)
    settle(engine)
    assert state(engine, id_) == QUEUED
    clock.advance(50)
    settle(engine)
    clock.advance(9)
    settle(engine)
    assert state(engine, id_) == QUEUED
    clock.advance(1)
    settle(engine)
    assert state(engine, id_) == FAILED


def test_a_task_that_was_claimed_in_time_does_not_time_out_in_the_queue(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(queue_ttl_s=10, lease_s=100))
    held = take(engine)
    clock.advance(50)
    settle(engine)
    engine.succeed(held)
    assert types(engine, id_)[-1] == "succeeded"


DEADLINE = Policy(deadline_s=20, lease_s=1000)
HOPS = {
    "queued": ["timed_out"],
    "assigned": ["lease_expired", "timed_out"],
    "running": ["failed"],
    "blocked": ["timed_out"],
    "waiting_input": ["timed_out"],
}


@each_case("start", HOPS)
def test_a_deadline_ends_a_task_in_every_open_state(engine: Engine, clock: VirtualClock, start: str) -> None:
    made = in_state(engine, start, policy=DEADLINE)
    before = types(engine, made.id)
    clock.advance(19.999999)
    settle(engine)
    assert state(engine, made.id) == start
    clock.advance(0.000001)
    settle(engine)
    task = engine.task(made.id)
    assert (task.state, task.finished_at, task.owner) == (FAILED, clock.now(), None)
    assert types(engine, made.id) == before + HOPS[start]
    assert last(engine, made.id).payload["reason"] == "timeout"
    assert engine.claim(worker="w") == []


@each_case("end", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_a_deadline_leaves_a_terminal_task_alone(engine: Engine, clock: VirtualClock, end: str) -> None:
    made = in_state(engine, end, policy=DEADLINE)
    before = engine.task(made.id)
    clock.advance(100)
    settle(engine)
    assert engine.task(made.id) == before
    assert engine.store.read_sql("SELECT task FROM onetray.due") == []


def test_a_deadline_counts_from_the_submit_over_all_attempts(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(deadline_s=20, jitter=False, backoff_base_s=0))
    for _ in range(2):
        clock.advance(8)
        engine.fail(running(engine), "no", retryable=True)
    clock.advance(4)
    settle(engine)
    assert state(engine, id_) == FAILED


def test_a_deadline_ends_a_delayed_task_too(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, delay_s=100, policy=DEADLINE)
    clock.advance(20)
    settle(engine)
    assert state(engine, id_) == FAILED


def test_an_attempt_that_runs_too_long_is_tried_again(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(timeout_s=10, lease_s=1000, max_attempts=2, jitter=False, backoff_base_s=5)
    id_ = submit(engine, policy=policy)
    running(engine)
    clock.advance(9.999999)
    settle(engine)
    assert state(engine, id_) == RUNNING
    clock.advance(0.000001)
    settle(engine)
    task, event = engine.task(id_), last(engine, id_)
    assert (task.state, task.attempts, task.run_at) == (QUEUED, 1, clock.now() + 5 * SECOND)
    assert (event.type, event.cause, event.actor) == ("task.retried", "timeout", "system:janitor")
    assert event.payload["owner"] == "w"


@each_case(("policy", "end"), [("dead_letter", DEAD_LETTERED), ("fail", FAILED)])
def test_a_timeout_of_the_last_attempt_exhausts_the_task(
    engine: Engine, clock: VirtualClock, policy: str, end: str
) -> None:
    id_ = submit(engine, policy=Policy(timeout_s=10, lease_s=1000, max_attempts=1, on_exhaustion=policy))
    running(engine)
    clock.advance(10)
    settle(engine)
    assert state(engine, id_) == end
    if end == DEAD_LETTERED:
        assert engine.dead_letters(id_)[0].reason_code == "timeout"
    else:
        assert last(engine, id_).payload["reason"] == "timeout"


def test_the_time_of_an_attempt_begins_at_its_start(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(timeout_s=10, lease_s=1000))
    held = take(engine)
    clock.advance(50)
    settle(engine)
    engine.start(held)
    clock.advance(9)
    settle(engine)
    assert state(engine, id_) == RUNNING


def test_the_timeout_of_an_earlier_attempt_does_not_end_a_later_one(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(timeout_s=10, lease_s=1000))
    engine.release(running(engine))
    clock.advance(5)
    running(engine)
    clock.advance(5)
    settle(engine)
    assert state(engine, id_) == RUNNING
    clock.advance(5)
    settle(engine)
    assert state(engine, id_) == QUEUED


def test_a_worker_that_lost_its_task_to_a_timeout_is_told_so(engine: Engine, clock: VirtualClock) -> None:
    submit(engine, policy=Policy(timeout_s=10, lease_s=1000))
    held = running(engine)
    clock.advance(10)
    settle(engine)
    verdict = engine.run([c.Succeed(**c.ticket(held))])[0]
    assert verdict.error is not None
    assert verdict.error.code == "lease_lost"


def test_a_task_that_is_due_for_two_things_ends_once(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, policy=Policy(queue_ttl_s=10, deadline_s=10))
    clock.advance(10)
    settle(engine)
    assert types(engine, id_) == ["submitted", "timed_out"]


def test_what_is_due_is_done_in_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(5):
        submit(engine, delay_s=1)
    clock.advance(1)
    assert [engine.do_due(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert len(engine.claim(worker="w", limit=9)) == 5
