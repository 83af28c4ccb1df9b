"""Lanes on PostgreSQL, where submits, claims and reports really happen at the same time: none is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.engine.unused_lanes import UnusedLanes
from tests.contract.test_limits import claim, submit
from tests.support.engines import engine_on, must_verify
from tests.support.waits import wait_until

PATIENCE_S = 60


@pytest.fixture
def two(migrated_url: str) -> Iterator[tuple[Engine, Engine]]:
    """Two engines on one database, which has a task in a lane."""
    with engine_on(migrated_url) as first, engine_on(migrated_url) as second:
        first.configure("mail", Policy(fair_by="tenant"))
        submit(first, ["a"])
        second.store.names.refresh()
        yield first, second


def once_at(point: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something when a transaction first comes to this point."""
    left = [act]

    def hook(name: str) -> None:
        if name == point and left:
            left.pop()()

    monkeypatch.setattr(failpoints, "hook", hook)


def test_a_task_that_is_committed_before_a_claim_empties_its_lane_is_seen(
    two: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    once_at("claimed", lambda: submit(second, ["a"]), monkeypatch)
    assert len(claim(first)) == 1
    assert len(claim(first)) == 1


def test_a_lane_that_a_submit_has_entered_is_not_emptied(
    two: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    entered, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    once_at("lanes_shared", wait, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(submit, second, ["a"])
        assert entered.wait(PATIENCE_S)
        assert len(claim(first)) == 1
        go_on.set()
        submitted.result(PATIENCE_S)
    assert len(claim(first)) == 1


def test_a_submit_waits_for_the_claim_that_empties_its_lane_and_opens_it_again(
    two: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    with ThreadPoolExecutor(1) as pool:
        submitted = []

        def start() -> None:
            submitted.append(pool.submit(submit, second, ["a"]))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%onetray.lane%'"
            give_up_at = time.monotonic() + PATIENCE_S
            while not second.store.read_sql(waiting):
                assert time.monotonic() < give_up_at

        once_at("slots_taken", start, monkeypatch)
        assert len(claim(first)) == 1
        submitted[0].result(PATIENCE_S)
    assert len(claim(first)) == 1


def test_tasks_that_come_and_go_at_once_are_all_claimed_within_the_limit(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine:
        engine.configure("mail", Policy(fair_by="tenant", concurrency=Concurrency(2, key="tenant")))
        give_up_at = time.monotonic() + PATIENCE_S
        done: list[str] = []

        def put(n: int) -> None:
            with Engine.open(migrated_url, config=EngineConfig(committers=1)) as own:
                for i in range(30):
                    submit(own, ["a" if i % 3 else f"b{n}"])

        def take(_: int) -> None:
            with Engine.open(migrated_url, config=EngineConfig(committers=1)) as own:
                while len(done) < 90 and time.monotonic() < give_up_at:
                    # A lane that a report found locked is opened by the janitor.
                    own.do_due()
                    for a in claim(own, limit=2):
                        own.succeed(a)
                        done.append(a.id)

        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(work, n) for work in (put, take) for n in range(3)]
        assert [future.result() for future in running] == [None] * 6
        assert len(set(done)) == 90
        must_verify(engine)


def test_a_new_limit_counts_the_tasks_of_a_claim_that_did_not_know_it(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(migrated_url) as first, engine_on(migrated_url) as second:
        submit(first, range(5))
        # The claim has picked its tasks and is not committed: the limit comes.
        once_at("claimed", lambda: second.set_limit(kind="mail", concurrency=3), monkeypatch)
        assert len(claim(first, limit=2)) == 2
        assert second.limits()[0].counting
        assert claim(first) == []
        give_up_at = time.monotonic() + PATIENCE_S
        while second.limits()[0].counting:
            second.do_due()
            assert time.monotonic() < give_up_at
        assert second.limits()[0].running == 2
        assert len(claim(first)) == 1


def test_a_submit_in_a_callers_transaction_holds_up_nobody(migrated_url: str) -> None:
    import psycopg

    with engine_on(migrated_url) as engine:
        engine.configure("mail", Policy(fair_by="tenant"))
        submit(engine, ["a"])
        claim(engine)
        with psycopg.connect(migrated_url) as connection:
            engine.submit("mail", {"tenant": "a"}, priority=5, connection=connection)
            submit(engine, ["a"])
            assert len(claim(engine)) == 1
            connection.commit()
        while engine.do_due():
            pass
        assert len(claim(engine)) == 1


def test_a_counter_that_a_claim_takes_a_slot_of_is_not_deleted_as_unused(
    two: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    first.configure("mail", Policy(fair_by="tenant", concurrency=Concurrency(1, key="tenant")))
    submit(first, ["a", "b"])
    for task in claim(first, limit=2):
        first.succeed(task)
    submit(first, ["a", "a"])
    unused = UnusedLanes(second.store)
    unused._unused = {key for (key,) in first.store.read_sql("SELECT key FROM onetray.lane WHERE state = 0")}
    with second.store.transaction() as tx:
        tx.fetch("UPDATE onetray.lane SET retired_at = 1 WHERE state = 0", {})

    with ThreadPoolExecutor(1) as pool:
        removals: list[Future[None]] = []

        def remove() -> None:
            removals.append(pool.submit(second.store.write, unused.remove))
            wait_until(lambda: removals[0].done() or is_waiting(second))

        once_at("slots_taken", remove, monkeypatch)
        assert len(claim(first)) == 1
        removals[0].result(PATIENCE_S)
    assert claim(first) == []
    must_verify(first)


def is_waiting(engine: Engine) -> bool:
    """Whether a transaction waits for a lock."""
    return bool(engine.store.read_sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
