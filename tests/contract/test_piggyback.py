"""A worker's claim runs in the transaction of a submit or of a report."""

from __future__ import annotations

import time
from typing import Any

from onetray.domain import commands as c
from onetray.domain.errors import Unavailable
from onetray.domain.task import Assignment, Verdict
from onetray.engine import Engine
from onetray.engine.piggyback import PiggybackClaim
from tests.support.cases import each_case
from tests.support.tasks import written


class OneClaim:
    """A claimer with one claim, which keeps its verdict."""

    def __init__(self, engine: Engine, **fields: Any) -> None:
        self.claim: c.Claim | None = c.Claim(**{"worker": "w", "limit": 2, "request_key": "r", **fields})
        self.first_claim, self.verdict = self.claim, Verdict(error=Unavailable("not yet"))
        self.told = 0
        engine.piggyback.join(self)

    def next_claim(self, command: c.Command) -> PiggybackClaim | None:
        claim, self.claim = self.claim, None
        return None if claim is None else PiggybackClaim(self, claim, time.monotonic())

    def deliver(self, piggyback: PiggybackClaim, verdict: Verdict) -> None:
        assert piggyback.claim is self.first_claim
        self.verdict, self.told = verdict, self.told + 1

    @property
    def got(self) -> list[str]:
        claimed: list[Assignment] = self.verdict.unwrap()
        return [a.id for a in claimed]


def commits(engine: Engine) -> list[bool]:
    """A list that grows with each commit: whether there is more to claim."""
    seen: list[bool] = []
    engine.store.on_commit.append(lambda work, told: seen.append(bool(work)))
    return seen


def test_a_submit_is_claimed_by_its_own_transaction(engine: Engine) -> None:
    claimer, seen = OneClaim(engine), commits(engine)
    id_ = engine.submit("mail").id
    assert len(seen) == 1
    assert claimer.got == [id_]
    assert claimer.told == 1
    assert engine.task(id_).state == "assigned"


def test_nobody_is_woken_for_what_was_claimed_at_once(engine: Engine) -> None:
    OneClaim(engine), (seen := commits(engine))
    engine.submit("mail")
    engine.submit("mail")
    assert seen == [False, True]


def test_what_a_claim_left_over_is_told_of(engine: Engine) -> None:
    claimer, seen = OneClaim(engine, limit=1), commits(engine)
    engine.run([c.Submit(kind="mail"), c.Submit(kind="mail")])
    assert len(claimer.got) == 1
    assert seen == [True]


def test_an_older_task_is_claimed_first_and_the_new_one_is_told_of(engine: Engine) -> None:
    old = engine.submit("mail").id
    claimer, seen = OneClaim(engine, limit=1), commits(engine)
    engine.submit("mail")
    assert claimer.got == [old]
    assert seen == [True]


def test_a_success_takes_the_next_claim_along(engine: Engine) -> None:
    first, second = (engine.submit("mail").id for _ in range(2))
    (task,) = engine.claim(worker="w", limit=1)
    claimer, seen = OneClaim(engine), commits(engine)
    engine.succeed(task)
    assert len(seen) == 1
    assert claimer.got == [second]
    assert engine.task(first).state == "succeeded"


def test_a_success_that_is_refused_takes_it_along_too(engine: Engine) -> None:
    engine.submit("mail")
    claimer = OneClaim(engine)
    verdict = engine.run([c.Succeed(task=999, fence=1, worker="w", lease=1, version=2)])[0]
    assert verdict.error is not None
    assert len(claimer.got) == 1


@each_case("fields", [{"delay_s": 60}, {"run_at": 2**50}], ids=str)
def test_a_submit_for_later_starts_no_piggybacked_claim(engine: Engine, fields: dict[str, Any]) -> None:
    claimer = OneClaim(engine)
    engine.submit("mail", **fields)
    assert claimer.claim is not None


def test_one_that_has_left_is_not_asked(engine: Engine) -> None:
    claimer = OneClaim(engine)
    assert engine.piggyback
    engine.piggyback.leave(claimer)
    assert not engine.piggyback
    assert engine.task(engine.submit("mail").id).state == "queued"


def test_the_next_is_asked_when_the_first_has_nothing(engine: Engine) -> None:
    first, second = OneClaim(engine), OneClaim(engine, worker="v", request_key="s")
    first.claim = None
    id_ = engine.submit("mail").id
    assert first.told == 0
    assert second.got == [id_]


def test_one_whose_transaction_failed_is_told_so_and_can_be_made_again(engine: Engine) -> None:
    claimer = OneClaim(engine)
    engine._committer._closed = True
    try:
        assert isinstance(engine.run([c.Submit(kind="mail")])[0].error, Unavailable)
    finally:
        engine._committer._closed = False
    assert isinstance(claimer.verdict.error, Unavailable)
    engine.submit("mail")
    assert claimer.first_claim is not None
    assert len(engine.call(claimer.first_claim)) == 1


def test_a_claim_that_rode_along_is_found_again_by_its_key(engine: Engine) -> None:
    claimer = OneClaim(engine)
    engine.submit("mail")
    before = written(engine)
    assert claimer.first_claim is not None
    assert [a.id for a in engine.call(claimer.first_claim)] == claimer.got
    assert written(engine) == before
