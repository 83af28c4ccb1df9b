"""Claims of a task that is alone in its queue, which are written at once: the same answers as those of other claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment, Verdict
from onetray.engine import Engine, batch, fast_claim
from onetray.store import fast_claim_postgres
from onetray.store.event_log import PAGE
from onetray.store.postgres import PostgresStore
from tests.support.engines import engine_on


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each claim that was tried at once: whether it was written so."""
    written: list[bool] = []
    verdict_of = fast_claim._verdict

    def noted(*given: Any) -> Verdict | None:
        verdict = verdict_of(*given)
        written.append(verdict is not None)
        return verdict

    monkeypatch.setattr(fast_claim, "_verdict", noted)
    return written


def expecting(**fields: Any) -> c.Claim:
    """The claim of a worker that was woken for one task."""
    claim = c.Claim(**{"worker": "w", "limit": 10, "request_key": "r", **fields})
    claim.expects_one = True
    return claim


def claim(engine: Engine, **fields: Any) -> list[Assignment]:
    for low in getattr(engine.store, "low_water", {}).values():
        # On a busy machine the last scan of the queue may have been slow.
        low.costs.extend([0.0] * 3)
    claimed: list[Assignment] = engine.call(expecting(**fields))
    return claimed


def test_it_answers_and_records_what_other_claims_do(engine: Engine, clock: VirtualClock, at_once: list[bool]) -> None:
    fields: dict[str, Any] = {"payload": {"to": "ann"}, "priority": 3, "correlation_id": "c"}
    first = engine.submit("mail", **fields).id
    [usual] = engine.claim(worker="w", limit=10, request_key="q")
    engine.submit("mail", **fields)
    clock.advance(1)
    [fast] = claim(engine)
    assert at_once == [True]
    changed = {"key", "id", "lease", "lease_expires_at", "idempotency_key"}
    assert replace(fast, **{name: getattr(usual, name) for name in changed}) == usual
    assert fast.lease_expires_at == clock.now() + fast.policy.lease_us
    events = [[(e.type, e.was, e.state, e.version, e.fence, e.attempts, e.actor) for e in engine.events(id_)]
              for id_ in (first, fast.id)]  # fmt: skip
    assert events[0] == events[1]


def test_it_is_reported_like_any_other(engine: Engine, at_once: list[bool]) -> None:
    engine.submit("mail")
    [task] = claim(engine)
    engine.succeed(task, {"sent": True})
    assert at_once == [True]
    assert engine.task(task.id).state == "succeeded"
    assert [e.type for e in engine.events(task.id)] == [
        "task.submitted", "task.claimed", "task.started", "task.succeeded",
    ]  # fmt: skip


def test_of_several_it_takes_as_many_as_it_asked_for(engine: Engine, at_once: list[bool]) -> None:
    ids = [engine.submit("mail").id for _ in range(3)]
    assert [a.id for a in claim(engine)] == ids
    assert at_once == [False]


def test_an_empty_queue_is_not_an_error(engine: Engine) -> None:
    engine.claim(worker="w")
    engine.submit("mail", queue="other")
    assert claim(engine) == []


def test_a_repeated_request_gets_its_task_and_no_other(engine: Engine, at_once: list[bool]) -> None:
    engine.submit("mail")
    [task] = claim(engine)
    engine.submit("mail")
    assert [a.id for a in claim(engine)] == [task.id]
    assert at_once == [True, False]


@pytest.mark.parametrize("why", ["paused", "limited", "kind", "breaker", "delayed"])
def test_it_takes_nothing_that_another_claim_would_leave(engine: Engine, why: str) -> None:
    policy = Policy(breaker_failures=1, breaker_open_s=30, max_attempts=5)
    if why == "breaker":
        engine.configure("mail", policy)
        engine.submit("mail")
        engine.fail(engine.claim(worker="w")[0], "no")
    elif why == "paused":
        engine.submit("mail")
        engine.pause_queue("default")
    elif why == "limited":
        engine.configure("mail", Policy(concurrency=Concurrency(1)))
        engine.submit("mail")
        engine.claim(worker="w")
        engine.submit("mail")
    elif why == "delayed":
        engine.submit("mail", delay_s=60)
    if why in ("kind", "breaker"):
        engine.submit("mail")
    assert claim(engine, **({"kinds": ("scan",)} if why == "kind" else {})) == []


def test_a_task_of_a_flow_takes_the_usual_way(engine: Engine, at_once: list[bool]) -> None:
    engine.submit_flow("f", [StageSpec("a", [TaskSpec("mail")])])
    [task] = claim(engine)
    assert at_once == [False]
    assert task.flow
    engine.succeed(task)


def test_a_task_with_a_long_history_takes_the_usual_way(engine: Engine, at_once: list[bool]) -> None:
    engine.submit("mail")
    for n in range(PAGE):
        [task] = claim(engine, request_key=str(n))
        if not at_once[-1]:
            break
        engine.release(task)
    assert engine.task(task.id).version == PAGE


def test_the_time_never_runs_back(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    with engine_on(database_url, VirtualClock(clock.now() + 5_000_000)) as ahead:
        id_ = ahead.submit("mail").id
    [task] = claim(engine)
    times = [event.ts for event in engine.events(id_ or "")]
    assert times == sorted(times)
    assert task.lease_expires_at >= times[-1] + task.policy.lease_us


def test_two_claimers_of_one_task_do_not_share_it(engine: Engine, database_url: str, clock: VirtualClock) -> None:
    engine.submit("mail")
    with engine_on(database_url, clock) as other:
        got = claim(engine, worker="a", request_key="1") + claim(other, worker="b", request_key="2")
    assert len(got) == 1


def test_a_submit_carries_such_a_claim(engine: Engine, at_once: list[bool]) -> None:
    submit = c.Submit(kind="mail")
    receipt, claimed = batch.run_batch(
        engine.store, [submit, expecting()], engine._rng, 60.0, engine.config.limits, engine.tally
    )
    if engine.store.takes_more_with_one:
        assert at_once == [True]
    assert [a.id for a in claimed.unwrap()] == [receipt.unwrap().id]


@pytest.mark.parametrize("written", [True, False])
def test_a_lost_answer_is_found_under_the_request_key(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    run = fast_claim_postgres.run_queries

    def lose(connection: Any, queries: Any) -> Any:
        if written:
            run(connection, queries)
        raise psycopg.OperationalError("the connection is lost")

    with engine_on(migrated_url) as engine:
        first, _ = engine.submit("mail").id, engine.submit("mail", queue="other")
        monkeypatch.setattr(fast_claim_postgres, "run_queries", lose)
        assert [a.id for a in claim(engine)] == [first]
        assert engine.task(first or "").attempts == 1
        assert [e.type for e in engine.events(first or "")] == ["task.submitted", "task.claimed"]


def test_a_slow_scan_of_the_queue_is_left_to_claims_that_begin_at_the_mark(
    migrated_url: str, at_once: list[bool]
) -> None:
    with engine_on(migrated_url) as engine:
        assert isinstance(engine.store, PostgresStore)
        engine.submit("mail")
        claim(engine)
        [low] = engine.store.low_water.values()
        low.costs.extend([5.0] * 3)
        engine.submit("mail")
        assert len(engine.call(expecting(request_key="2"))) == 1
        assert at_once == [True, False]


def test_two_requests_with_one_key_at_the_same_time_get_the_same_task(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine, engine_on(migrated_url) as other, ThreadPoolExecutor(2) as threads:
        for n in range(20):
            id_ = engine.submit("mail").id
            both = [threads.submit(claim, each, request_key=str(n)) for each in (engine, other)]
            found = [[a.id for a in each.result(60)] for each in both]
            assert found == [[id_], [id_]]
