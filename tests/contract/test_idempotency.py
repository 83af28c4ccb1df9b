"""Idempotency keys: one job for each namespace, kind and key, while the key lives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import KeyReused
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.cases import each_case
from tests.support.tasks import counts, running, submit, take


def test_the_same_key_and_body_give_the_same_job(engine: Engine) -> None:
    first = engine.submit("mail", {"a": 1, "b": [1, 2]}, idempotency_key="k")
    before = counts(engine)
    again = engine.submit("mail", {"b": [1, 2], "a": 1}, idempotency_key="k")
    assert (again.id, again.repeated, first.repeated) == (first.id, True, False)
    assert counts(engine) == before
    assert len(engine.claim(worker="w", limit=9)) == 1


def test_the_answer_says_where_the_job_stands_now(engine: Engine) -> None:
    first = engine.submit("mail", idempotency_key="k")
    engine.succeed(running(engine), "sent")
    again = engine.submit("mail", idempotency_key="k")
    assert (again.id, again.state, again.version) == (first.id, "succeeded", 4)


@each_case("other", [{"payload": 2}, {"queue": "other"}])
def test_the_same_key_with_another_body_is_refused(engine: Engine, other: dict[str, object]) -> None:
    first = engine.submit("mail", 1, idempotency_key="k")
    before = counts(engine)
    with pytest.raises(KeyReused) as refused:
        engine.submit("mail", **{"payload": 1, **other}, idempotency_key="k")
    assert (refused.value.task, refused.value.idempotency_key) == (first.id, "k")
    after = counts(engine)
    after["queue"] = before["queue"]
    assert after == before


def test_a_key_lives_as_long_as_its_policy_says(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(idempotency_ttl_s=100))
    first = submit(engine, payload=1, idempotency_key="k")
    clock.advance(99.999999)
    assert submit(engine, payload=1, idempotency_key="k") == first
    clock.advance(0.000001)
    second = submit(engine, payload=2, idempotency_key="k")
    assert second != first
    clock.advance(99)
    assert submit(engine, payload=2, idempotency_key="k") == second


def test_a_repeated_submit_does_not_prolong_its_key(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", Policy(idempotency_ttl_s=100))
    first = submit(engine, idempotency_key="k")
    clock.advance(60)
    assert submit(engine, idempotency_key="k") == first
    clock.advance(60)
    assert submit(engine, idempotency_key="k") != first


def test_the_same_key_twice_in_one_batch(engine: Engine) -> None:
    one, two, other, free = engine.run(
        [
            c.Submit(kind="mail", payload=1, idempotency_key="k"),
            c.Submit(kind="mail", payload=1, idempotency_key="k"),
            c.Submit(kind="mail", payload=2, idempotency_key="k"),
            c.Submit(kind="mail", payload=2),
        ]
    )
    assert one.unwrap().id == two.unwrap().id
    assert two.unwrap().repeated
    assert isinstance(other.error, KeyReused)
    assert other.error.task == one.unwrap().id
    assert free.ok
    assert counts(engine)["task"] == 2


def test_keys_of_kinds_and_namespaces_are_apart(engine: Engine) -> None:
    ids = {
        submit(engine, "mail", idempotency_key="k"),
        submit(engine, "sms", idempotency_key="k"),
        submit(engine, "mail", idempotency_key="k", namespace="other"),
        submit(engine, "mail", idempotency_key="K"),
    }
    assert len(ids) == 4


def test_a_key_that_was_refused_with_its_batch_is_still_free(engine: Engine) -> None:
    bad = engine.run([c.Submit(kind="mail", payload=object(), idempotency_key="k")])[0]
    assert not bad.ok
    assert not engine.submit("mail", 1, idempotency_key="k").repeated


def test_the_same_key_from_many_threads_makes_one_job(engine: Engine) -> None:
    together = Barrier(16)

    def one(i: int) -> list[str | None]:
        together.wait(30)
        return [
            engine.submit("mail", {"n": n}, idempotency_key=f"k{n}").id for n in (range(6), range(5, -1, -1))[i % 2]
        ]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(16)))
    assert len({id_ for ids in answers for id_ in ids}) == 6
    assert counts(engine)["task"] == 6


def test_different_bodies_from_many_threads_make_one_job(engine: Engine) -> None:
    together = Barrier(8)

    def one(i: int) -> str:
        together.wait(30)
        return "won" if engine.run([c.Submit(kind="mail", payload=i, idempotency_key="k")])[0].ok else "lost"

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(8))) == ["lost"] * 7 + ["won"]
    assert take(engine).fence == 1
