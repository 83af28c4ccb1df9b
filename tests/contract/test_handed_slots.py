"""A claim in the transaction of reports takes over the slots that these free, and leaves others theirs."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.commands import Claim, Succeed
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.contract.test_limits import claim, per_tenant, submit, tenants
from tests.support.engines import must_verify


def report_and_claim(engine: Engine, held: list[Assignment], limit: int = 100, **fields: Any) -> list[Assignment]:
    """Report successes and claim in one transaction, as a worker does."""
    reports = [
        Succeed(task=a.key, fence=a.fence, worker="w", lease=a.lease, attempt=a.attempt, version=a.version)
        for a in held
    ]
    *verdicts, claimed = engine.run([*reports, Claim(worker="w", limit=limit, **fields)])
    assert [v.error for v in verdicts] == [None] * len(held)
    assert claimed.error is None
    found: list[Assignment] = claimed.value
    return found


def counters(engine: Engine) -> list[tuple[str, int]]:
    found = engine.store.read_sql("SELECT value, running FROM onetray.limit_bucket ORDER BY value")
    return [(value, running) for value, running in found]


def test_freed_slots_go_to_the_lanes_that_wait_for_them(engine: Engine) -> None:
    per_tenant(engine, 2)
    submit(engine, ["a"] * 5 + ["b"] * 3)
    held = claim(engine)
    assert all(a.has_slots for a in held)
    again = report_and_claim(engine, held)
    assert sorted(tenants(again)) == ["a", "a", "b"]
    assert counters(engine) == [('"a"', 2), ('"b"', 1)]
    assert tenants(report_and_claim(engine, again)) == ["a"]
    assert claim(engine) == []
    must_verify(engine)


@pytest.mark.parametrize("limited_limit", [0, 1])
def test_what_the_claim_has_no_room_for_stays_open_for_others(engine: Engine, limited_limit: int) -> None:
    per_tenant(engine, 2)
    submit(engine, ["a"] * 6)
    held = claim(engine)
    assert len(report_and_claim(engine, held, limited_limit=limited_limit)) == limited_limit
    must_verify(engine)
    assert len(claim(engine)) == 2 - limited_limit
    assert claim(engine) == []


def test_a_lane_of_another_queue_gets_a_slot_that_it_has_waited_for(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a"])
    (held,) = claim(engine)
    submit(engine, ["a"], queue="other")
    assert claim(engine) == []
    assert claim(engine, queue="other") == []
    submit(engine, ["a"] * 5)
    # The tasks of both lanes take turns in the order of their submits.
    (held,) = report_and_claim(engine, [held])
    assert report_and_claim(engine, [held]) == []
    must_verify(engine)
    assert [a.queue for a in claim(engine, queue="other")] == ["other"]
    assert claim(engine) == []
    must_verify(engine)


def test_a_queue_that_waits_for_a_kind_is_not_passed_over(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=1))
    submit(engine, range(3))
    submit(engine, range(1), queue="other")
    (held,) = claim(engine)
    assert claim(engine, queue="other") == []
    assert report_and_claim(engine, [held]) == []
    assert [a.queue for a in claim(engine, queue="other")] == ["other"]
    must_verify(engine)


def test_a_queue_that_waits_alone_takes_its_slot_at_once(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=1))
    submit(engine, range(3))
    (held,) = claim(engine)
    assert claim(engine) == []
    (held,) = report_and_claim(engine, [held])
    (held,) = report_and_claim(engine, [held])
    assert report_and_claim(engine, [held]) == []
    must_verify(engine)


def test_slots_of_two_keys_are_handed_over_only_together(engine: Engine) -> None:
    both = (Concurrency(1, key="tenant"), Concurrency(2, key="region"))
    engine.configure("mail", Policy(concurrency=both))
    for tenant, region in (("a", 1), ("b", 1), ("c", 1), ("a", 1), ("c", 2)):
        engine.submit("mail", {"tenant": tenant, "region": region})
    held = claim(engine)
    assert sorted(tenants(held)) == ["a", "b", "c"]
    seen = len(held)
    while held:
        held = report_and_claim(engine, held)
        must_verify(engine)
        seen += len(held)
    assert seen == 5
    assert {running for _, running in counters(engine)} == {0}


def test_a_claim_of_another_kind_opens_the_lanes_that_it_may_not_serve(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a"])
    (held,) = claim(engine)
    assert claim(engine) == []
    assert report_and_claim(engine, [held], kinds=("other",)) == []
    must_verify(engine)
    assert tenants(claim(engine)) == ["a"]


def test_a_limit_that_was_lowered_meanwhile_gets_its_slots_back(engine: Engine) -> None:
    per_tenant(engine, 3)
    submit(engine, ["a"] * 8)
    held = claim(engine)
    engine.set_limit(kind="mail", key="tenant", concurrency=1)
    assert report_and_claim(engine, held[:1]) == []
    assert counters(engine) == [('"a"', 2)]
    assert len(report_and_claim(engine, held[1:])) == 1
    must_verify(engine)


def test_a_limit_that_was_removed_meanwhile_holds_nothing_back(engine: Engine) -> None:
    per_tenant(engine, 1)
    submit(engine, ["a", "a", "a"])
    held = claim(engine)
    engine.configure("mail", Policy(fair_by="tenant"))
    assert len(report_and_claim(engine, held)) == 2
    must_verify(engine)
