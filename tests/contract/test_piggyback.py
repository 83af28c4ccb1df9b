"""A worker's claim runs in the transaction of a submit or of a report."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onetray.domain import commands as c
from onetray.domain.errors import Unavailable
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.task import Assignment, Verdict
from onetray.engine import Engine, batch
from onetray.engine.batch_context import BatchContext
from onetray.engine.claim import claim
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


def two_stages(engine: Engine, size: int = 2) -> list[Assignment]:
    """The claimed tasks of the first stage of a flow; a second stage follows with as many."""
    tasks = [TaskSpec("mail") for _ in range(size)]
    engine.submit_flow("post", [StageSpec("first", tasks), StageSpec("second", tasks)])
    return engine.claim(worker="w", limit=size)


def only_new(engine: Engine, **fields: Any) -> OneClaim:
    claimer = OneClaim(engine, **fields)
    assert claimer.first_claim is not None
    claimer.first_claim.only_new = True
    return claimer


def test_a_claim_of_new_tasks_takes_none_that_were_there_before(engine: Engine) -> None:
    first, _ = two_stages(engine)
    engine.submit("mail")
    claimer = only_new(engine)
    engine.succeed(first)
    assert claimer.told == 1
    assert claimer.got == []


def test_the_last_success_of_a_stage_claims_the_next_stage(engine: Engine) -> None:
    first, second = two_stages(engine)
    engine.succeed(first)
    claimer, seen = only_new(engine), commits(engine)
    engine.succeed(second)
    assert len(claimer.got) == 2
    assert not {first.id, second.id} & set(claimer.got)
    assert seen == [False], "all of it is claimed: nobody is woken"


def test_tasks_of_an_opened_stage_that_are_left_over_are_announced(engine: Engine) -> None:
    first, second = two_stages(engine)
    engine.succeed(first)
    claimer, seen = only_new(engine, limit=1), commits(engine)
    engine.succeed(second)
    assert len(claimer.got) == 1
    assert seen == [True]


def test_an_opened_stage_is_announced_if_older_tasks_were_claimed_instead(engine: Engine) -> None:
    first, second = two_stages(engine)
    older = [engine.submit("mail", priority=9).id for _ in range(2)]
    engine.succeed(first)
    claimer, seen = only_new(engine), commits(engine)
    engine.succeed(second)
    assert claimer.got == older
    assert seen == [True]


def test_an_opened_stage_in_another_queue_is_announced(engine: Engine) -> None:
    first, second = (TaskSpec("mail"), TaskSpec("mail", queue="other"))
    engine.submit_flow("post", [StageSpec("first", [first]), StageSpec("second", [second])])
    (task,) = engine.claim(worker="w", limit=1)
    claimer, seen = only_new(engine), commits(engine)
    engine.succeed(task)
    assert claimer.got == []
    assert seen == [True]


def claim_and_free(context: BatchContext, work: list[tuple[int, c.Claim]]) -> None:
    """Claim, and let others claim, as a claim in a queue with limits does if it leaves tasks that they can take."""
    claim(context, work)
    context.tx.work.uncounted |= context.tx.work.queues


def test_what_a_claim_itself_lets_others_claim_is_announced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two_stages(engine)
    engine.succeed(first)
    monkeypatch.setattr(batch, "claim", claim_and_free)
    claimer, seen = only_new(engine), commits(engine)
    engine.succeed(second)
    assert len(claimer.got) == 2
    assert seen == [True]


def test_what_the_claim_with_submits_lets_others_claim_is_announced(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "claim", claim_and_free)
    claimer, seen = OneClaim(engine, limit=2), commits(engine)
    engine.run([c.Submit(kind="mail"), c.Submit(kind="mail")])
    assert len(claimer.got) == 2
    assert seen == [True]
