"""Tasks with different values take turns, by their weights, whoever submits most."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from onetray.domain.clock import VirtualClock
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.contract.test_limits import claim, submit, tenants

FAIR = Policy(fair_by="tenant")


@pytest.fixture
def fair(engine: Engine) -> Engine:
    engine.configure("mail", FAIR)
    return engine


def test_tenants_take_turns_in_a_claim(fair: Engine) -> None:
    submit(fair, ["a"] * 10 + ["b"] * 3 + ["c"] * 1)
    assert tenants(claim(fair, limit=7)) == ["a", "b", "c", "a", "b", "a", "b"]
    assert tenants(claim(fair)) == ["a"] * 7


def test_tenants_take_turns_over_claims(fair: Engine) -> None:
    submit(fair, ["a"] * 10 + ["b"] * 3)
    assert [tenants(claim(fair, limit=1)) for _ in range(7)] == [["a"], ["b"], ["a"], ["b"], ["a"], ["b"], ["a"]]


def test_a_small_tenant_does_not_wait_behind_a_big_one(fair: Engine) -> None:
    submit(fair, ["big"] * 2_000)
    for _ in range(5):
        claim(fair, limit=100)
    submit(fair, ["small"] * 10)
    assert tenants(claim(fair, limit=20)).count("small") == 10


def test_weights_are_shares(fair: Engine) -> None:
    fair.set_weight("mail", '"gold"', 3.0)
    submit(fair, ["gold"] * 100 + ["plain"] * 100)
    assert Counter(tenants(claim(fair, limit=40))) == {"gold": 30, "plain": 10}
    fair.set_weight("mail", '"gold"', 1.0)
    assert Counter(tenants(claim(fair, limit=40))) == {"gold": 20, "plain": 20}


def test_a_tenant_that_was_idle_does_not_catch_up(fair: Engine) -> None:
    submit(fair, ["a"] * 100 + ["b"])
    claim(fair, limit=61)
    submit(fair, ["b"] * 50)
    assert 18 <= tenants(claim(fair, limit=40)).count("b") <= 21


def test_priority_comes_before_turns(fair: Engine) -> None:
    submit(fair, ["a"] * 3 + ["b"] * 3)
    submit(fair, ["a"] * 2, priority=7)
    assert tenants(claim(fair, limit=3)) == ["a", "a", "b"]


def test_fairness_and_a_limit_by_the_same_key(engine: Engine) -> None:
    engine.configure("mail", Policy(fair_by="tenant", concurrency=[4, Concurrency(3, key="tenant")]))
    submit(engine, ["a"] * 10 + ["b"] * 10)
    held = claim(engine)
    assert Counter(tenants(held)) == {"a": 2, "b": 2}
    for a in held:
        if a.payload["tenant"] == "a":
            engine.succeed(a)
    assert tenants(claim(engine)) == ["a", "b"]


def test_fair_tasks_may_be_claimed_ahead_of_need(fair: Engine) -> None:
    submit(fair, ["a", "b"])
    assert len(claim(fair, limited_limit=0)) == 2


def test_two_fair_kinds_share_a_queue(engine: Engine) -> None:
    for kind in ("mail", "sms"):
        engine.configure(kind, FAIR)
        submit(engine, ["a"] * 5 + ["b"] * 5, kind=kind)
    got = claim(engine, limit=8)
    assert Counter((a.kind, a.payload["tenant"]) for a in got) == dict.fromkeys(
        [("mail", "a"), ("mail", "b"), ("sms", "a"), ("sms", "b")], 2
    )
    assert {a.kind for a in claim(engine, kinds=("sms",))} == {"sms"}


def test_a_flows_tasks_take_turns(fair: Engine, clock: VirtualClock) -> None:
    from onetray.domain.flow import StageSpec, TaskSpec

    tasks = [TaskSpec(kind="mail", payload={"tenant": t}) for t in ("a", "a", "a", "b")]
    fair.submit_flow("letters", [StageSpec(name="send", tasks=tasks), StageSpec(name="end", tasks=tasks[-1:])])
    held = claim(fair, limit=2)
    assert tenants(held) == ["a", "b"]
    held += claim(fair)
    for a in held:
        fair.succeed(a)
    assert tenants(claim(fair)) == ["b"]


def test_a_redriven_task_waits_in_its_lane(fair: Engine) -> None:
    (id_,) = submit(fair, ["a"])
    (held,) = claim(fair)
    fair.fail(held, "no", retryable=False)
    again: Any = fair.redrive(id_)
    submit(fair, ["a", "b"])
    assert [a.id for a in claim(fair, limit=1)] == [again.id]
