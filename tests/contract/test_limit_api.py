"""Limits as operators and code set them: reads, changes, events."""

from __future__ import annotations

from typing import Any

import pytest

from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.limits import Concurrency, Limit, LimitDetails, Rate
from onetray.domain.policy import Policy
from onetray.engine import Engine


def only(engine: Engine) -> LimitDetails:
    (found,) = engine.limits()
    return found


def numbers(limit: LimitDetails) -> tuple[str, str | None, str | None, str | None, int, float | None, bool]:
    return limit.what, limit.queue, limit.kind, limit.key, limit.most, limit.per_s, limit.smooth


def test_an_operator_sets_changes_and_removes_a_limit(engine: Engine) -> None:
    made = engine.set_limit(queue="mail", concurrency=10, by="ann", reason="slow server")
    assert numbers(only(engine)) == ("concurrency", "mail", None, None, 10, None, False)
    assert (only(engine).id, only(engine).set_by, only(engine).declared, only(engine).counting) == (
        made, "ann", None, False,
    )  # fmt: skip
    assert engine.set_limit(queue="mail", concurrency=3, by="bob") == made
    assert (only(engine).most, only(engine).set_by) == (3, "bob")
    engine.remove_limit(made, by="bob")
    assert engine.limits() == []
    assert {e.payload["limit"] for e in changes(engine)} == {"concurrency of queue mail"}
    assert [(e.type, e.actor, e.payload.get("was"), e.payload.get("most")) for e in changes(engine)] == [
        ("limit.set", "user:ann", None, 10), ("limit.set", "user:bob", 10, 3), ("limit.removed", "user:bob", 3, None),
    ]  # fmt: skip


def changes(engine: Engine) -> list[Any]:
    return [e for e in engine.feed.read(0).events if e.type.startswith(("limit.", "weight."))]


def test_a_change_to_the_same_numbers_is_no_change(engine: Engine) -> None:
    for _ in range(2):
        engine.set_limit(kind="mail", rate="100/m", by="ann")
    assert len(changes(engine)) == 1


def test_a_queue_a_kind_and_a_rate_are_limits_of_their_own(engine: Engine) -> None:
    engine.set_limit(queue="mail", concurrency=10)
    engine.set_limit(kind="mail", concurrency=5)
    engine.set_limit(kind="mail", rate="100/5m", smooth=True)
    assert [numbers(limit) for limit in engine.limits()] == [
        ("concurrency", "mail", None, None, 10, None, False),
        ("concurrency", None, "mail", None, 5, None, False),
        ("rate", None, "mail", None, 100, 300.0, True),
    ]
    assert [limit.what for limit in engine.limits(kind="mail")] == ["concurrency", "rate"]
    assert [limit.most for limit in engine.limits(queue="mail")] == [10]
    assert engine.limits(namespace="other") == []


def test_code_declares_limits_with_the_policy_of_a_kind(engine: Engine) -> None:
    policy = Policy(concurrency=[5, Concurrency(3, key="tenant")], rate=Rate(100, 60.0, smooth=True))
    engine.configure("mail", policy)
    assert [(*numbers(limit)[3:], limit.set_by) for limit in engine.limits()] == [
        (None, 5, None, False, None), ("tenant", 3, None, False, None), (None, 100, 60.0, True, None),
    ]  # fmt: skip
    assert engine.limits()[1].declared == Limit(3, kind="mail", key="tenant")
    engine.configure("mail", policy.with_(rate=(), concurrency=(7,)))
    assert numbers(only(engine)) == ("concurrency", None, "mail", None, 7, None, False)
    engine.configure("mail", Policy())
    assert engine.limits() == []
    assert {e.actor for e in changes(engine)} == {"system:engine"}


def test_an_operators_number_outlives_a_deploy_until_it_is_reset(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=5))
    engine.set_limit(kind="mail", concurrency=2, by="ann")
    engine.configure("mail", Policy(concurrency=8))
    limit = only(engine)
    assert (limit.most, limit.set_by, limit.declared) == (2, "ann", Limit(8, kind="mail"))
    engine.reset_limit(limit.id, by="ann")
    assert (only(engine).most, only(engine).set_by) == (8, None)


def test_code_that_drops_a_limit_keeps_what_an_operator_has_set(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=5))
    engine.set_limit(kind="mail", concurrency=2, by="ann")
    engine.configure("mail", Policy())
    assert (only(engine).most, only(engine).declared) == (2, None)
    with pytest.raises(Conflict, match="remove_limit"):
        engine.reset_limit(only(engine).id)
    engine.remove_limit(only(engine).id)
    assert engine.limits() == []


def test_what_cannot_be_done_says_what_to_do(engine: Engine) -> None:
    engine.configure("mail", Policy(concurrency=5))
    with pytest.raises(Conflict, match="remove it there"):
        engine.remove_limit(only(engine).id)
    with pytest.raises(NotFound, match="there is no limit 4711"):
        engine.remove_limit(4711)
    with pytest.raises(NotFound):
        engine.reset_limit(only(engine).id, namespace="other")
    with pytest.raises(InvalidInput, match=r"has no key 'tenant' \(it has: none\): declare it in code"):
        engine.set_limit(kind="mail", key="tenant", concurrency=1)
    with pytest.raises(InvalidInput, match="a queue or for a kind"):
        engine.set_limit(concurrency=1)
    with pytest.raises(InvalidInput, match="one of the two"):
        engine.set_limit(queue="mail")
    with pytest.raises(InvalidInput, match="as 10/s, 100/m"):
        engine.set_limit(queue="mail", rate="often")
    with pytest.raises(InvalidInput, match="whole number from 0"):
        engine.set_limit(queue="mail", concurrency=-1)
    with pytest.raises(InvalidInput, match="fair_by"):
        engine.set_weight("mail", '"acme"', 2.0)


def test_weights_are_set_for_values(engine: Engine) -> None:
    engine.configure("mail", Policy(fair_by="tenant"))
    engine.set_weight("mail", ' "acme" ', 2.5, by="ann")
    engine.set_weight("mail", '"acme"', 2.5, by="ann")
    (event,) = changes(engine)
    assert (event.type, event.payload["value"], event.payload["was"], event.payload["weight"]) == (
        "weight.set", '"acme"', 1.0, 2.5,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="must be JSON"):
        engine.set_weight("mail", "acme", 2.0)
    with pytest.raises(InvalidInput, match=r"from 0\.01 to 1000"):
        engine.set_weight("mail", '"acme"', 0)


def test_an_app_declares_limits_of_queues(engine: Engine) -> None:
    engine.declare_limit("mail", concurrency=4)
    engine.set_limit(queue="mail", concurrency=2)
    engine.declare_limit("mail", concurrency=6)
    assert (only(engine).most, only(engine).declared) == (2, Limit(6, "mail"))
