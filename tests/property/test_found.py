"""What the property tests have found, each as the shortest way to it."""

from __future__ import annotations

import time

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Claim, Submit
from onetray.domain.errors import IllegalTransition, NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import MAX_SPARED
from onetray.engine import Engine
from onetray.explain.tasks import is_claimable

PLAIN = Policy(jitter=False, backoff_base_s=10, backoff_max_s=10, lease_s=60)


def test_a_task_is_promoted_though_a_time_of_an_older_attempt_is_due_as_well(
    engine: Engine, clock: VirtualClock
) -> None:
    task = engine.submit("mail", policy=PLAIN).id or ""
    engine.fail(engine.claim(worker="w")[0], "no")
    engine.reschedule(task, delay_s=0)
    clock.advance(1)
    engine.fail(engine.claim(worker="w")[0], "no")
    clock.advance(30)
    engine.do_due()
    assert [a.id for a in engine.claim(worker="w")] == [task]


def test_an_attempt_times_out_though_the_time_of_an_older_one_is_due_as_well(
    engine: Engine, clock: VirtualClock
) -> None:
    task = engine.submit("mail", policy=PLAIN.with_(timeout_s=5)).id or ""
    (first,) = engine.claim(worker="w")
    engine.start(first)
    engine.release(first)
    clock.advance(1)
    engine.start(engine.claim(worker="w")[0])
    clock.advance(10)
    engine.do_due()
    assert (engine.task(task).state, engine.task(task).attempts) == ("queued", 1)


def test_a_task_waits_no_longer_than_its_ttl_though_it_was_queued_before(engine: Engine, clock: VirtualClock) -> None:
    task = engine.submit("mail", policy=PLAIN.with_(queue_ttl_s=5)).id or ""
    clock.advance(1)
    engine.release(engine.claim(worker="w")[0])
    clock.advance(10)
    engine.do_due()
    assert engine.task(task).state == "failed"


def test_rescheduling_to_later_moves_the_time_to_live_along(engine: Engine, clock: VirtualClock) -> None:
    task = engine.submit("mail", policy=PLAIN.with_(queue_ttl_s=5)).id or ""
    engine.reschedule(task, delay_s=20)
    clock.advance(20)
    engine.do_due()
    assert engine.task(task).state == "queued"
    clock.advance(5)
    engine.do_due()
    assert engine.task(task).state == "failed"


def test_a_request_key_can_be_used_again_when_its_lease_has_run_out(engine: Engine, clock: VirtualClock) -> None:
    engine.submit("mail", policy=PLAIN)
    engine.claim(worker="w", request_key="r")
    engine.submit("mail", policy=PLAIN)
    clock.advance(61)
    (second,) = engine.claim(worker="w", request_key="r")
    assert [a.id for a in engine.claim(worker="w", request_key="r")] == [second.id]


def test_a_request_key_names_the_same_claim_after_its_work_is_done(engine: Engine) -> None:
    engine.submit("mail", policy=PLAIN)
    engine.succeed(engine.claim(worker="w", request_key="r")[0])
    engine.submit("mail", policy=PLAIN)
    assert engine.claim(worker="w", request_key="r") == []


def test_a_failure_that_the_engine_found_is_not_taken_for_the_workers_own_report(
    engine: Engine, clock: VirtualClock
) -> None:
    engine.submit("mail", policy=PLAIN.with_(max_attempts=1, on_exhaustion="fail"))
    (held,) = engine.claim(worker="w")
    engine.start(held)
    clock.advance(61)
    engine.expire_leases()
    with pytest.raises(IllegalTransition):
        engine.fail(held, "no")


def test_a_batch_enters_the_queue_in_its_order_with_and_without_keys(engine: Engine) -> None:
    batch = [Submit(kind="mail", payload=n, idempotency_key=f"k{n}" if n % 2 else None) for n in range(6)]
    engine.run(list(batch))
    assert [a.payload for a in engine.claim(worker="w", limit=6)] == list(range(6))


def test_an_unknown_name_does_not_make_a_database_in_memory_wait_for_itself() -> None:
    with Engine.open("sqlite://:memory:") as engine:
        task = engine.submit("mail").id or ""
        began = time.monotonic()
        with pytest.raises(NotFound):
            engine.cancel(task, namespace="elsewhere")
        assert time.monotonic() - began < 5


def test_a_claim_takes_the_most_urgent_task_of_its_own_batch(engine: Engine) -> None:
    engine.submit("mail", "first")
    engine.claim(worker="w")
    batch = [Submit(kind="mail", payload="plain"), Submit(kind="mail", payload="urgent", priority=5)]
    verdicts = engine.run([*batch, Claim(worker="w")])
    assert [a.payload for a in verdicts[2].unwrap()] == ["urgent"]


def test_a_deadline_spares_a_task_no_more_often_than_it_may_be(engine: Engine, clock: VirtualClock) -> None:
    engine.submit("mail", policy=PLAIN.with_(deadline_s=1000))
    for _ in range(MAX_SPARED):
        engine.claim(worker="w")
        clock.advance(61)
        engine.expire_leases()
    engine.claim(worker="w", lease_s=5000)
    clock.advance(1000)
    engine.do_due()
    # The verifier, after the test, counts.


def test_a_task_that_is_promoted_is_no_longer_due(engine: Engine, clock: VirtualClock) -> None:
    task = engine.submit("mail", policy=PLAIN, delay_s=10).id or ""
    engine.reschedule(task, delay_s=20)
    clock.advance(30)
    engine.do("promote", task=task)
    assert is_claimable(engine.explain(task))
    # The verifier, after the test, finds no task that is both ready and due.
