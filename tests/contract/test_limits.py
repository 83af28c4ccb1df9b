"""Limits hold: at claims, whatever ends a task, and while they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onetray.domain.clock import SECOND, VirtualClock
from onetray.domain.commands import Claim, Submit
from onetray.domain.errors import InvalidInput
from onetray.domain.limits import Concurrency, Rate
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine


def submit(engine: Engine, tenants: Sequence[Any], kind: str = "mail", **fields: Any) -> list[str]:
    verdicts = engine.run([Submit(kind=kind, payload={"tenant": tenant}, **fields) for tenant in tenants])
    for verdict in verdicts:
        if verdict.error is not None:
            raise verdict.error
    return [verdict.value.id for verdict in verdicts]


def claim(engine: Engine, limit: int = 100, **fields: Any) -> list[Assignment]:
    claimed: list[Assignment] = engine.call(Claim(worker="w", limit=limit, **fields))
    return claimed


def tenants(claimed: Sequence[Assignment]) -> list[Any]:
    return [a.payload["tenant"] for a in claimed]


def per_tenant(engine: Engine, most: int, **policy: Any) -> None:
    engine.configure("mail", Policy(concurrency=Concurrency(most, key="tenant"), **policy))


def test_a_kind_runs_no_more_tasks_than_its_limit(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=3))
    submit(engine, range(10))
    submit(engine, range(2), kind="other")
    first = claim(engine)
    assert sorted(a.kind for a in first) == ["mail"] * 3 + ["other"] * 2
    assert claim(engine) == []
    engine.succeed(first[0])
    assert [a.kind for a in claim(engine)] == ["mail"]
    assert claim(engine) == []


def test_a_queue_runs_no_more_tasks_than_its_limit(engine: Engine) -> None:
    engine.set_limit(queue="default", concurrency=2)
    submit(engine, range(2))
    submit(engine, range(2), kind="other")
    assert len(claim(engine)) == 2
    assert claim(engine) == []


def test_each_value_of_a_key_has_the_limit_for_itself(engine: Engine) -> None:
    per_tenant(engine, 2)
    submit(engine, ["a", "a", "a", "b", "c", "c", "c"])
    first = claim(engine)
    assert sorted(tenants(first)) == ["a", "a", "b", "c", "c"]
    assert claim(engine) == []
    engine.succeed(next(a for a in first if a.payload["tenant"] == "a"))
    assert tenants(claim(engine)) == ["a"]


@pytest.mark.parametrize("value", [None, 0, 1.5, True, "", "ü", [1, {"x": None}], {"b": 1, "a": 2}])
def test_any_json_is_a_value(engine: Engine, value: Any) -> None:
    per_tenant(engine, 1)
    submit(engine, [value, value])
    assert tenants(claim(engine)) == [value]


def test_a_payload_without_the_key_has_the_value_null(engine: Engine) -> None:
    per_tenant(engine, 1)
    for payload in ({}, {"tenant": None}, [], 5, None):
        engine.submit("mail", payload)
    assert len(claim(engine)) == 1


def test_a_key_is_a_path(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=Concurrency(1, key="to.0.org")))
    for org in ("x", "x", "y"):
        engine.submit("mail", {"to": [{"org": org}]})
    assert [a.payload["to"][0]["org"] for a in claim(engine)] == ["x", "y"]


def test_a_value_that_is_too_long_is_refused(engine: Engine) -> None:
    per_tenant(engine, 1)
    with pytest.raises(InvalidInput, match="more than 500 bytes"):
        submit(engine, ["a" * 600])
    verdicts = engine.run([Submit(kind="mail", payload={"tenant": t}) for t in ("a", "b" * 600)])
    assert [verdict.ok for verdict in verdicts] == [True, False]


def test_all_limits_of_a_task_hold_together(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=[4, Concurrency(2, key="tenant")]))
    engine.set_limit(queue="default", concurrency=3)
    submit(engine, ["a", "a", "a", "b", "b", "b", "c"])
    first = claim(engine)
    assert len(first) == 3
    assert max(tenants(first).count(t) for t in "abc") <= 2
    engine.succeed(first[0])
    assert len(claim(engine)) == 1


WAYS_OUT = ("succeed", "fail", "retry", "release", "block", "cancel", "expire", "dead_letter")


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("started", [False, True])
def test_every_way_out_gives_the_slot_back(engine: Engine, clock: VirtualClock, way: str, started: bool) -> None:
    per_tenant(engine, 1, max_attempts=2, backoff_base_s=0.0, jitter=False)
    submit(engine, ["a", "a"])
    (held,) = claim(engine)
    if started:
        engine.start(held)
    leave(engine, clock, held, way)
    (limit,) = engine.limits()
    assert limit.running == 0
    assert len(claim(engine)) == 1
    assert engine.limits()[0].running == 1


def leave(engine: Engine, clock: VirtualClock, held: Assignment, way: str) -> None:
    match way:
        case "fail":
            engine.fail(held, "no", retryable=False)
        case "retry":
            engine.fail(held, "no", retryable=True)
        case "dead_letter":
            engine.fail(held, "no", retryable=False, reason_code="parse_error")
        case "block":
            engine.pause(held, owner="ann", reason="why")
        case "cancel":
            engine.cancel(held.id, hard=True)
        case "expire":
            clock.advance(100)
            engine.expire_leases()
        case _:
            getattr(engine, way)(held)


def test_a_soft_cancel_gives_the_slot_back_when_the_task_ends(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a"])
    (held,) = claim(engine)
    engine.start(held)
    engine.cancel(held.id)
    assert claim(engine) == []
    engine.succeed(held)
    assert len(claim(engine)) == 1


def test_a_raised_limit_lets_more_start_at_once_and_a_lowered_one_drains(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a"] * 10)
    held = claim(engine)
    engine.set_limit(kind="mail", key="tenant", concurrency=4)
    held += claim(engine)
    assert len(held) == 4
    engine.set_limit(kind="mail", key="tenant", concurrency=2)
    for a in held[:2]:
        engine.succeed(a)
        assert claim(engine) == []
    engine.succeed(held[2])
    assert len(claim(engine)) == 1


def test_a_limit_of_nothing_holds_everything_back(engine: Engine) -> None:
    engine.set_limit(kind="mail", concurrency=0)
    submit(engine, ["a"])
    assert claim(engine) == []
    engine.set_limit(kind="mail", concurrency=1)
    assert len(claim(engine)) == 1


def test_a_limit_without_a_key_counts_the_tasks_that_run_already(engine: Engine) -> None:
    submit(engine, range(5))
    held = claim(engine, limit=2)
    engine.set_limit(kind="mail", concurrency=3)
    assert engine.limits()[0].running == 2
    assert len(claim(engine)) == 1
    for a in held:
        engine.succeed(a)
    assert len(claim(engine)) == 2


def test_a_removed_limit_holds_nobody_back(engine: Engine) -> None:
    limit = engine.set_limit(queue="default", concurrency=1)
    submit(engine, range(3))
    (held,) = claim(engine)
    engine.remove_limit(limit)
    assert len(claim(engine)) == 2
    engine.succeed(held)
    limit = engine.set_limit(queue="default", concurrency=5)
    assert engine.limits()[0].running == 2


def test_a_key_that_the_code_drops_releases_what_it_held_back(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a", "a"])
    (held,) = claim(engine)
    engine.configure("mail", Policy())
    assert len(claim(engine)) == 2
    engine.succeed(held)
    submit(engine, ["a", "a"])
    assert len(claim(engine)) == 2


def test_tasks_under_a_limit_are_not_claimed_ahead_of_need(engine: Engine) -> None:
    per_tenant(engine, 5)
    submit(engine, ["a"] * 4)
    submit(engine, range(4), kind="other")
    claimed = claim(engine, limit=6, limited_limit=1)
    assert sorted(a.kind for a in claimed) == ["mail"] + ["other"] * 4
    assert claim(engine, limit=6, limited_limit=0) == []


def test_claims_that_run_together_keep_their_own_limits(engine: Engine) -> None:
    per_tenant(engine, 5)
    submit(engine, ["a"] * 5)
    submit(engine, range(5), kind="other")
    claims = [Claim(worker="w1", limit=4, limited_limit=1), Claim(worker="w2", limit=3, limited_limit=3)]
    one, two = (verdict.value for verdict in engine.run(claims))
    assert len(one) == 4
    assert sum(a.kind == "mail" for a in one) <= 1
    assert len(two) == 3
    assert sum(a.kind == "mail" for a in two) <= 3


def test_priorities_hold_over_lanes(engine: Engine) -> None:
    per_tenant(engine, 10)
    submit(engine, ["a", "b"])
    submit(engine, ["c"], priority=5)
    submit(engine, ["a"], priority=9)
    assert tenants(claim(engine, limit=1)) == ["a"]
    assert tenants(claim(engine, limit=1)) == ["c"]
    assert tenants(claim(engine)) == ["a", "b"]


def test_lanes_and_other_tasks_share_a_claim(engine: Engine) -> None:
    per_tenant(engine, 100)
    submit(engine, ["a"] * 20)
    submit(engine, range(20), kind="other")
    claimed = claim(engine, limit=10)
    assert sorted(a.kind for a in claimed) == ["mail"] * 5 + ["other"] * 5
    assert len(claim(engine, limit=40)) == 30


def test_a_paused_queue_and_an_open_breaker_hold_tasks_in_lanes_back(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a"])
    engine.pause_queue("default")
    assert claim(engine) == []
    engine.resume_queue("default")
    engine.open_breaker("mail", for_s=60)
    assert claim(engine) == []
    engine.close_breaker("mail")
    assert len(claim(engine)) == 1


def test_a_rate_allows_so_many_starts_within_any_period(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(rate="3/m"))
    submit(engine, range(10))
    assert len(claim(engine)) == 3
    clock.advance(59)
    engine.do_due()
    assert claim(engine) == []
    clock.advance(2)
    engine.do_due()
    assert len(claim(engine)) == 3


def test_a_rate_by_a_key_opens_each_value_in_its_time(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(rate=Rate(2, 60, key="tenant")))
    submit(engine, ["a", "a", "a"])
    assert tenants(claim(engine)) == ["a", "a"]
    clock.advance(30)
    submit(engine, ["b", "b", "b"])
    assert tenants(claim(engine)) == ["b", "b"]
    assert claim(engine) == []
    clock.advance(31)
    engine.do_due()
    assert tenants(claim(engine)) == ["a"]
    clock.advance(30)
    engine.do_due()
    assert tenants(claim(engine)) == ["b"]


def test_a_smooth_rate_spreads_its_starts(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(rate=Rate(60, 60, smooth=True)))
    submit(engine, range(100))
    burst = len(claim(engine))
    assert 1 <= burst <= 4
    starts = []
    for _ in range(60):
        clock.advance(1)
        engine.do_due()
        starts.append(len(claim(engine)))
    assert max(starts) <= 2
    assert 55 <= sum(starts) <= 60


@pytest.mark.parametrize("smooth", [False, True])
def test_no_window_has_more_starts_than_the_rate_and_nearly_all_are_used(
    engine: Engine, clock: VirtualClock, smooth: bool
) -> None:
    engine.configure("mail", Policy(rate=(Rate(40, 10, key="tenant", smooth=smooth),)))
    submit(engine, ["a"] * 300)
    for _ in range(150):
        engine.do_due()
        claim(engine, limit=7)
        clock.advance(0.4)
    starts = [e.ts for e in engine.feed.read(0, 10_000).events if e.type == "task.claimed"]
    most = max(sum(at - 10 * SECOND < start <= at for start in starts) for at in starts)
    assert most <= 40
    assert len(starts) >= 0.95 * 40 * 6


def test_reads_say_who_holds_slots_and_who_waits(engine: Engine, clock: VirtualClock) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a", "b"])
    held = {a.payload["tenant"]: a for a in claim(engine)}
    (limit,) = engine.limits()
    assert (limit.running, limit.blocked) == (2, 1)
    values = engine.limit_values(limit.id)
    assert [(v.value, v.running, v.blocked) for v in values] == [("a", 1, 1), ("b", 1, 0)]
    assert values[0].blocked_since == clock.now()
    assert [v.value for v in engine.limit_values(limit.id, after=values[0].cursor)] == ["b"]
    (holder,) = engine.limit_holders(limit.id, value='"a"')
    assert (holder.task, holder.worker, holder.kind) == (held["a"].id, "w", "mail")
    assert holder.lease_expires_at == held["a"].lease_expires_at
    with pytest.raises(InvalidInput, match="pass a value"):
        engine.limit_holders(limit.id)


def test_a_used_up_rate_says_when_the_next_may_start(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(rate="1/m"))
    submit(engine, range(2))
    claim(engine)
    (limit,) = engine.limits()
    assert limit.next_start_at is not None
    assert 60 * SECOND <= limit.next_start_at - clock.now() <= 60.6 * SECOND


def test_tasks_in_lanes_are_listed_counted_and_explained(engine: Engine) -> None:
    per_tenant(engine, 1)
    ids = submit(engine, ["a", "a", "b"])
    submit(engine, [1], kind="other")
    (queue,) = engine.queues()
    assert (queue.ready, queue.oldest_ready_at) == (4, engine.task(ids[0]).run_at)
    assert {t.id for t in engine.pending_tasks()} >= set(ids)
    assert engine.position(ids[1]) == 1
    assert engine.overview().queues[0].ready == 4


def test_a_task_in_a_lane_changes_like_any_other(engine: Engine, clock: VirtualClock) -> None:
    per_tenant(engine, 1)
    first, second, third = submit(engine, ["a", "a", "a"])
    engine.set_priority(second, 5)
    assert [a.id for a in claim(engine)] == [second]
    engine.reschedule(first, delay_s=60)
    engine.cancel(third)
    engine.set_limit(kind="mail", key="tenant", concurrency=5)
    assert claim(engine) == []
    clock.advance(61)
    engine.do_due()
    assert [a.id for a in claim(engine)] == [first]


def test_submit_many_and_delayed_tasks_wait_in_lanes(engine: Engine, clock: VirtualClock) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a"] * 3, delay_s=10)
    assert claim(engine) == []
    clock.advance(11)
    engine.do_due()
    assert len(claim(engine)) == 1


def test_a_rate_that_was_made_faster_does_not_wait_for_its_old_period(engine: Engine, clock: VirtualClock) -> None:
    limits = {"concurrency": Concurrency(1, key="tenant"), "rate": Rate(1, per_s=86_400, key="tenant")}
    engine.configure("mail", Policy(**limits))
    submit(engine, ["a", "a"])
    (first,) = claim(engine)
    assert claim(engine) == []
    engine.set_limit(kind="mail", key="tenant", rate="1/m")
    engine.succeed(first)
    assert claim(engine) == []
    # The time of the start was kept to a hundredth of the old period.
    clock.advance(864 + 62)
    engine.do_due()
    assert tenants(claim(engine)) == ["a"]


def test_the_length_of_a_value_is_counted_in_bytes(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["ü" * 200])
    with pytest.raises(InvalidInput, match="500 bytes"):
        submit(engine, ["\U0001f4e6" * 400])


def test_long_values_of_several_keys_are_refused_before_they_are_too_long_for_an_index(engine: Engine) -> None:
    paths = [f"{name}{'x' * 190}" for name in "abcd"]
    engine.configure("mail", Policy(concurrency=tuple(Concurrency(1, key=path) for path in paths)))
    digits = "".join(str(n * n % 97) for n in range(400))
    fits, too_long = ({path: digits[i : i + length] for i, path in enumerate(paths)} for length in (300, 490))
    engine.submit("mail", fits)
    with pytest.raises(InvalidInput, match="together"):
        engine.submit("mail", too_long)
    assert len(claim(engine)) == 1


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_slot_that_another_queue_does_not_take_is_not_lost(
    engine: Engine, clock: VirtualClock, is_paused: bool
) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a"])
    (held,) = claim(engine)
    submit(engine, ["a"], queue="other")
    submit(engine, ["a"])
    assert claim(engine, queue="other") == claim(engine) == []
    if is_paused:
        engine.pause_queue("other")
    # The lane of the other queue is the first, and no worker serves it.
    engine.succeed(held)
    clock.advance(3)
    engine.do_due()
    assert tenants(claim(engine)) == ["a"]
