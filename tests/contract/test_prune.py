"""Pruning: whole terminal jobs, by age, a bounded number at a time."""

from __future__ import annotations

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.feed import Page
from tests.support.tasks import counts, in_state, running, settle, state, submit, take, written

DAY = 86_400


def newer(engine: Engine) -> str:
    """Another job with the newest event, which is never removed."""
    return submit(engine, "newer", delay_s=10 * DAY)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_a_terminal_job_is_removed_when_it_is_old_enough(engine: Engine, clock: VirtualClock, end: str) -> None:
    made = in_state(engine, end)
    kept = newer(engine)
    clock.advance(99)
    assert engine.prune(100) == []
    clock.advance(1)
    assert len(engine.prune(100)) == 1
    with pytest.raises(NotFound):
        engine.task(made.id)
    assert state(engine, kept) == "queued"


@pytest.mark.parametrize("start", ["queued", "assigned", "running", "blocked", "waiting_input"])
def test_an_open_job_is_never_removed(engine: Engine, clock: VirtualClock, start: str) -> None:
    made = in_state(engine, start)
    newer(engine)
    clock.advance(1000 * DAY)
    before = written(engine)
    assert engine.prune(0) == []
    assert written(engine) == before
    assert state(engine, made.id) == start


def test_age_counts_from_the_end_of_a_job(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    clock.advance(100)
    engine.succeed(take(engine))
    newer(engine)
    clock.advance(50)
    assert engine.prune(60) == []
    clock.advance(10)
    assert len(engine.prune(60)) == 1


def test_nothing_of_a_pruned_job_is_left_in_any_table(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(deadline_s=300, queue_ttl_s=100, timeout_s=50, record_heartbeats=True, idempotency_ttl_s=10)
    newer(engine)
    submit(engine, policy=policy, idempotency_key="k", unique_key="u", labels={"team": "a"})
    held = running(engine)
    engine.log(held, "a line")
    engine.say_progress(held, 1)
    engine.checkpoint(held, 1)
    engine.beat(held)
    engine.cancel(held.id)
    engine.fail(held, "stopped")
    submit(engine, policy=policy)
    dead = running(engine)
    engine.fail(dead, "no", reason_code="timeout")
    newer(engine)
    clock.advance(3600)
    settle(engine)
    assert len(engine.prune(10)) == 2
    left = counts(engine)
    names = {name: left.pop(name) for name in ("namespace", "queue", "kind", "policy")}
    assert names["kind"] == 2
    assert left == {
        "task": 2, "ready": 0, "lease": 0, "due": 2, "event": 2, "idempotency": 0, "dead_letter": 0, "log": 0,
        "progress": 0, "checkpoint": 0,
        "label": 0, "unique_key": 0, "submit_window": 0, "alias": 0,
    }  # fmt: skip


def test_what_was_due_for_a_pruned_job_goes_when_its_time_comes(engine: Engine, clock: VirtualClock) -> None:
    submit(engine, policy=Policy(deadline_s=1000))
    engine.succeed(take(engine))
    newer(engine)
    clock.advance(100)
    assert len(engine.prune(10)) == 1
    clock.advance(1000)
    settle(engine)
    assert counts(engine)["due"] == 1


def test_a_living_idempotency_key_keeps_its_job(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine, idempotency_key="k", policy=Policy(idempotency_ttl_s=1000))
    engine.succeed(take(engine))
    newer(engine)
    clock.advance(999)
    assert engine.prune(10) == []
    assert submit(engine, idempotency_key="k") == id_
    clock.advance(1)
    assert len(engine.prune(10)) == 1
    assert counts(engine)["idempotency"] == 0


def test_a_key_that_another_job_took_over_stays(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(idempotency_ttl_s=100)
    submit(engine, idempotency_key="k", policy=policy)
    engine.succeed(take(engine))
    clock.advance(100)
    second = submit(engine, idempotency_key="k", policy=policy)
    assert len(engine.prune(10)) == 1
    assert submit(engine, idempotency_key="k", policy=policy) == second


def test_no_event_id_is_used_again_after_the_newest_was_pruned(engine: Engine, clock: VirtualClock) -> None:
    made = in_state(engine, "succeeded")
    clock.advance(1000)
    last = engine.events(made.id)[-1].id
    assert len(engine.prune(1)) == 1
    assert engine.feed.read(last) == Page([], last)
    newer(engine)
    assert [event.id > last for event in engine.feed.read(last).events] == [True] * len(engine.feed.read(0).events)


def test_a_prune_is_bounded(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(5):
        in_state(engine, "succeeded")
    newer(engine)
    clock.advance(100)
    assert [len(engine.prune(1, limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_a_prune_may_be_of_one_namespace(engine: Engine, clock: VirtualClock) -> None:
    for namespace in ("a", "b"):
        submit(engine, namespace=namespace)
        engine.succeed(take(engine, namespace=namespace))
    newer(engine)
    clock.advance(100)
    assert engine.prune(1, namespace="nowhere") == []
    assert len(engine.prune(1, namespace="a")) == 1
    assert len(engine.tasks(namespace="b")) == 1
    assert len(engine.prune(1)) == 1


def test_a_key_is_not_used_again_after_a_prune(engine: Engine, clock: VirtualClock) -> None:
    made = in_state(engine, "succeeded")
    key = engine.task(made.id).key
    kept = newer(engine)
    clock.advance(100)
    assert engine.prune(1) == [key]
    assert engine.task(submit(engine)).key > engine.task(kept).key


def test_a_negative_age_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine.prune(-1)
    assert refused.value.field == "older_than_s"
