"""A claim that a worker has left with the engine rides in the transaction of a submit or of a report."""

from __future__ import annotations

from typing import Any

import pytest

from onetray import commands as c
from onetray.engine import Engine
from onetray.errors import Unavailable
from tests.support.tasks import written


def claim(**fields: Any) -> c.Claim:
    return c.Claim(**{"worker": "w", "limit": 2, "request_key": "r", **fields})


def commits(engine: Engine) -> list[bool]:
    """A list that grows with each commit."""
    seen: list[bool] = []
    engine.store.on_commit.append(lambda work, told: seen.append(work))
    return seen


def test_a_submit_is_claimed_by_its_own_transaction(engine: Engine) -> None:
    parked = engine.parking.park(claim())
    seen = commits(engine)
    id_ = engine.submit("mail").id
    assert len(seen) == 1
    assert parked.wait(0)
    assert parked.verdict is not None
    assert [a.id for a in parked.verdict.unwrap()] == [id_]
    assert not engine.parking
    assert engine.task(id_).state == "assigned"


def test_a_success_takes_the_next_claim_along(engine: Engine) -> None:
    first, second = (engine.submit("mail").id for _ in range(2))
    (task,) = engine.claim(worker="w", limit=1)
    parked = engine.parking.park(claim())
    seen = commits(engine)
    engine.succeed(task)
    assert len(seen) == 1
    assert parked.verdict is not None
    assert [a.id for a in parked.verdict.unwrap()] == [second]
    assert engine.task(first).state == "succeeded"


def test_a_success_that_is_refused_takes_it_along_too(engine: Engine) -> None:
    engine.submit("mail")
    parked = engine.parking.park(claim())
    verdict = engine.run([c.Succeed(task=999, fence=1, worker="w", lease=1, version=2)])[0]
    assert verdict.error is not None
    assert parked.verdict is not None
    assert len(parked.verdict.unwrap()) == 1


@pytest.mark.parametrize(
    "fields", [{"queue": "other"}, {"namespace": "other"}, {"delay_s": 60}, {"run_at": 2**50}], ids=str
)
def test_a_submit_to_elsewhere_or_for_later_leaves_it(engine: Engine, fields: dict[str, Any]) -> None:
    parked = engine.parking.park(claim())
    engine.submit("mail", **fields)
    assert not parked.wait(0)
    assert engine.parking.withdraw(parked)


def test_one_that_was_withdrawn_is_not_carried_out(engine: Engine) -> None:
    parked = engine.parking.park(claim())
    assert engine.parking.withdraw(parked)
    assert not engine.parking.withdraw(parked)
    id_ = engine.submit("mail").id
    assert engine.task(id_).state == "queued"


def test_one_whose_transaction_failed_is_told_so_and_can_be_made_again(engine: Engine) -> None:
    parked = engine.parking.park(claim())
    engine._committer._closed = True
    try:
        assert isinstance(engine.run([c.Submit(kind="mail")])[0].error, Unavailable)
    finally:
        engine._committer._closed = False
    assert parked.verdict is not None
    assert isinstance(parked.verdict.error, Unavailable)
    engine.submit("mail")
    assert len(engine.call(parked.claim)) == 1


def test_a_claim_that_rode_along_is_found_again_by_its_key(engine: Engine) -> None:
    parked = engine.parking.park(claim())
    engine.submit("mail")
    assert parked.verdict is not None
    before = written(engine)
    assert [a.id for a in engine.call(claim())] == [a.id for a in parked.verdict.unwrap()]
    assert written(engine) == before
