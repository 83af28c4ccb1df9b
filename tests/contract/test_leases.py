"""Leases: who holds a task, for how long, and what a heartbeat answers."""

from __future__ import annotations

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.errors import LeaseLost
from onetray.domain.lifecycle import ASSIGNED, QUEUED, RUNNING, SUCCEEDED
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import running, settle, state, submit, take, types


def test_a_claim_names_its_owner_and_its_end(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = take(engine)
    task = engine.task(id_)
    assert (task.state, task.owner, task.lease) == (ASSIGNED, "w", held.lease)
    assert task.lease_expires_at == held.lease_expires_at == clock.now() + 60 * SECOND


def test_a_claim_may_ask_for_another_length(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    assert take(engine, lease_s=5).lease_expires_at == clock.now() + 5 * SECOND


def test_a_heartbeat_renews_the_lease_from_now(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = take(engine)
    clock.advance(40)
    assert engine.beat(held).lease_expires_at == clock.now() + 60 * SECOND
    clock.advance(60)
    settle(engine)
    engine.start(held)
    assert state(engine, id_) == RUNNING


def test_a_heartbeat_may_ask_for_another_length_but_never_shortens(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    held = take(engine)
    assert engine.beat(held, lease_s=300).lease_expires_at == clock.now() + 300 * SECOND
    assert engine.beat(held, lease_s=1).lease_expires_at == clock.now() + 300 * SECOND


def test_one_heartbeat_renews_all_tasks_of_the_claim(engine: Engine, clock: VirtualClock) -> None:
    ids = [submit(engine) for _ in range(5)]
    first, *_ = engine.claim(worker="w", limit=5)
    clock.advance(50)
    until = engine.beat(first).lease_expires_at
    assert {engine.task(i).lease_expires_at for i in ids} == {until}
    clock.advance(50)
    assert engine.expire_leases() == []
    assert len(engine.store.read_sql("SELECT key FROM onetray.lease")) == 1


def test_a_heartbeat_leaves_the_leases_of_other_claims_alone(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    submit(engine)
    first, second = take(engine), take(engine)
    clock.advance(50)
    engine.beat(first)
    clock.advance(11)
    assert engine.expire_leases() == [second.key]


def test_a_heartbeat_says_which_tasks_should_stop(engine: Engine) -> None:
    for _ in range(3):
        submit(engine)
    one, two, three = engine.claim(worker="w", limit=3)
    assert engine.beat(one).cancel == ()
    engine.cancel(two.id)
    assert engine.beat(one).cancel == (two.id,)
    assert engine.beat(two).cancel == (two.id,)
    engine.succeed(two)
    assert engine.beat(three) == engine.beat(one)
    assert engine.beat(one).cancel == ()


@each_case("how", ["hard cancel", "deadline", "dead letter"])
def test_a_heartbeat_says_which_tasks_are_gone(engine: Engine, clock: VirtualClock, how: str) -> None:
    submit(engine, policy=Policy(deadline_s=30) if how == "deadline" else None)
    submit(engine)
    gone, kept = engine.claim(worker="w", limit=2)
    engine.start(gone)
    match how:
        case "hard cancel":
            engine.cancel(gone.id, hard=True)
        case "dead letter":
            engine.dead_letter(gone.id, "policy_violation")
        case "deadline":
            clock.advance(31)
            settle(engine)
    answer = engine.beat(kept)
    assert (answer.cancel, answer.lost) == ((), (gone.id,))


def test_a_heartbeat_does_not_call_lost_what_the_worker_finished(engine: Engine) -> None:
    submit(engine)
    submit(engine)
    done, kept = engine.claim(worker="w", limit=2)
    engine.succeed(done)
    assert engine.beat(kept).lost == ()


def test_a_lease_is_good_up_to_and_including_its_expiry(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    clock.advance(60)
    assert engine.expire_leases() == []
    engine.succeed(held)
    assert state(engine, id_) == SUCCEEDED


def test_a_lease_can_be_renewed_up_to_and_including_its_expiry(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    held = take(engine)
    clock.advance(60)
    assert engine.beat(held).lease_expires_at == clock.now() + 60 * SECOND


def test_a_report_past_the_expiry_is_refused_before_the_janitor_came(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = running(engine)
    clock.advance(60.000001)
    for report in (engine.succeed, engine.beat, engine.release):
        with pytest.raises(LeaseLost, match="ran out"):
            report(held)
    assert state(engine, id_) == RUNNING
    assert engine.expire_leases() == [held.key]
    assert state(engine, id_) == QUEUED


def test_a_late_report_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    submit(engine)
    old = take(engine, worker="a")
    clock.advance(old.lease_s + 1)
    engine.expire_leases()
    new = take(engine, worker="b")
    with pytest.raises(LeaseLost) as lost:
        engine.succeed(old, "late")
    assert (lost.value.fence, lost.value.current_fence, lost.value.state) == (1, 2, ASSIGNED)
    task = engine.task(new.id)
    assert (task.state, task.owner, task.result) == (ASSIGNED, "b", None)


def test_an_expired_lease_takes_back_all_its_tasks_that_are_still_held(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(4):
        submit(engine, policy=Policy(jitter=False))
    done, released, started, waiting = engine.claim(worker="w", limit=4)
    engine.succeed(done)
    engine.release(released)
    engine.start(started)
    clock.advance(61)
    assert engine.expire_leases() == [started.key, waiting.key]
    assert engine.expire_leases() == []
    assert [state(engine, a.id) for a in (done, released, started, waiting)] == [SUCCEEDED, QUEUED, QUEUED, QUEUED]
    assert types(engine, started.id)[-1] == "lease_expired"
    assert engine.store.read_sql("SELECT key FROM onetray.lease") == []


def test_expiry_keeps_who_held_it(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = take(engine)
    clock.advance(61)
    engine.expire_leases()
    event = engine.events(id_)[-1]
    begin = engine.task(id_).created_at
    assert event.payload == {
        "owner": "w", "lease_expires_at": held.lease_expires_at, "given_back": True, "run_at": clock.now(),
        "run_at_was": begin,
    }  # fmt: skip
    assert event.actor == "system:janitor"


def test_expiry_is_done_in_bounded_steps(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(5):
        submit(engine)
        take(engine)
    clock.advance(61)
    assert [len(engine.expire_leases(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_expiring_as_if_it_were_later_leaves_no_task_behind(engine: Engine, clock: VirtualClock) -> None:
    id_ = submit(engine)
    held = take(engine)
    engine.expire_leases(now=clock.now() + 61 * SECOND)
    if state(engine, id_) == ASSIGNED:
        engine.beat(held)
    else:
        assert take(engine).fence == 2


def test_the_same_request_key_gets_the_same_claim_again(engine: Engine) -> None:
    for _ in range(4):
        submit(engine)
    first = engine.claim(worker="w", limit=2, request_key="r1")
    engine.start(first[0])
    again = engine.claim(worker="w", limit=2, request_key="r1")
    assert [(a.id, a.fence, a.attempt, a.lease, a.lease_expires_at) for a in again] == [
        (a.id, a.fence, a.attempt, a.lease, a.lease_expires_at) for a in first
    ]
    assert [a.state for a in again] == [RUNNING, ASSIGNED]
    other = engine.claim(worker="w", limit=2, request_key="r2")
    assert not {a.id for a in other} & {a.id for a in first}


def test_a_request_key_is_its_workers_own(engine: Engine) -> None:
    submit(engine)
    submit(engine)
    mine = take(engine, worker="a", request_key="r")
    theirs = take(engine, worker="b", request_key="r")
    assert mine.id != theirs.id


def test_a_request_key_is_its_namespaces_own(engine: Engine) -> None:
    submit(engine)
    submit(engine, namespace="other")
    assert take(engine, request_key="r").id != take(engine, request_key="r", namespace="other").id


def test_a_repeated_claim_leaves_out_what_was_finished(engine: Engine) -> None:
    for _ in range(3):
        submit(engine)
    one, two = engine.claim(worker="w", limit=2, request_key="r")
    engine.succeed(one)
    assert [a.id for a in engine.claim(worker="w", limit=2, request_key="r")] == [two.id]


def test_a_repeated_claim_of_which_nothing_is_left_takes_nothing_new(engine: Engine) -> None:
    for _ in range(2):
        submit(engine)
    engine.succeed(take(engine, request_key="r"))
    assert engine.claim(worker="w", request_key="r") == []
    assert len(engine.claim(worker="w", request_key="r2")) == 1


@pytest.mark.parametrize("swept", [True, False])
def test_a_request_key_whose_lease_ran_out_makes_a_new_claim(engine: Engine, clock: VirtualClock, swept: bool) -> None:
    submit(engine)
    submit(engine)
    first = take(engine, request_key="r")
    clock.advance(60)
    assert take(engine, request_key="r").id == first.id
    clock.advance(1)
    if swept:
        engine.expire_leases()
    again = take(engine, request_key="r")
    assert again.lease != first.lease
    assert (again.id == first.id) is swept
    assert take(engine, request_key="r").lease == again.lease


def test_an_empty_claim_does_not_use_its_request_key_up(engine: Engine) -> None:
    submit(engine, namespace="default", queue="other")
    assert engine.claim("other", worker="w", request_key="r", kinds=["none"]) == []
    assert len(engine.claim("other", worker="w", request_key="r")) == 1


def test_the_same_request_key_twice_in_one_batch(engine: Engine) -> None:
    submit(engine)
    submit(engine)
    one, two = engine.run([c.Claim(worker="w", request_key="r"), c.Claim(worker="w", request_key="r")])
    assert [a.id for a in one.unwrap()] == [a.id for a in two.unwrap()]


def test_two_lease_lengths_in_one_claim(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("short", Policy(lease_s=10))
    engine.configure("long", Policy(lease_s=100))
    for kind in ("short", "long", "short"):
        submit(engine, kind)
    one, two, three = engine.claim(worker="w", limit=3, request_key="r")
    ends = [(a.lease_expires_at - clock.now()) // SECOND for a in (one, two, three)]
    assert ends == [10, 100, 10]
    assert one.lease == three.lease != two.lease
    assert [a.id for a in engine.claim(worker="w", limit=3, request_key="r")] == [one.id, two.id, three.id]
    engine.beat(two)
    clock.advance(11)
    assert sorted(engine.expire_leases()) == [one.key, three.key]
    assert [a.id for a in engine.claim(worker="w", limit=3, request_key="r")] == [two.id]


def test_an_assignment_says_how_long_its_own_lease_is(engine: Engine) -> None:
    engine.submit("mail", policy=Policy(lease_s=60))
    (held,) = engine.claim(worker="w", lease_s=5, request_key="r")
    (again,) = engine.claim(worker="w", lease_s=5, request_key="r")
    assert (held.lease_s, again.lease_s) == (5.0, 5.0)
