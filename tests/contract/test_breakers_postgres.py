"""Breakers on PostgreSQL, where claims and reports really happen at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onetray import failpoints
from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.policy import Policy
from onetray.engine import Engine
from tests.support.audit import deadlocks
from tests.support.engines import engine_on
from tests.support.tasks import submit, take

ONE = Policy(breaker_failures=1, breaker_open_s=30, max_attempts=9, backoff_base_s=0)
PATIENCE_S = 60


def half_open(engine: Engine, clock: VirtualClock) -> None:
    engine.configure("mail", ONE)
    submit(engine)
    engine.fail(take(engine), "no", retry_after_s=9999)
    for _ in range(5):
        submit(engine)
    clock.advance(30)


def test_of_two_claimers_at_once_one_gets_the_probe_and_the_other_does_not_wait(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    with engine_on(migrated_url, clock) as first, engine_on(migrated_url, clock) as second:
        half_open(first, clock)
        other = submit(first, "scan")
        meanwhile: list[list[str]] = []

        def hook(point: str) -> None:
            # The first claim has its probe and is not committed: another one comes.
            if point == "claimed" and not meanwhile:
                meanwhile.append([])
                meanwhile[0] += [a.id for a in second.claim(worker="b", limit=10)]

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hook", hook)
            got = first.claim(worker="a", limit=1)
        assert [a.kind for a in got] == ["mail"]
        assert meanwhile == [[other]]
        assert second.claim(worker="b", limit=10) == []


def test_of_many_claimers_at_once_exactly_one_gets_the_probe(migrated_url: str) -> None:
    clock = VirtualClock()
    with engine_on(migrated_url, clock) as first, engine_on(migrated_url, clock) as second:
        half_open(first, clock)
        for _ in range(5):
            start = threading.Barrier(6)

            def claim(engine: Engine, start: threading.Barrier = start) -> int:
                start.wait(PATIENCE_S)
                return len(engine.claim(worker="w", limit=10))

            with ThreadPoolExecutor(6) as pool:
                got = list(pool.map(claim, [first, second] * 3))
            assert sum(got) == 1, got
            clock.advance(30)


def test_two_batches_that_count_the_same_kinds_the_other_way_round_do_not_deadlock(own_url: str) -> None:
    kinds = [f"k{n}" for n in range(6)]
    policy = Policy(breaker_failures=1000, max_attempts=1000)
    with engine_on(own_url) as first, engine_on(own_url) as second:
        for kind in kinds:
            first.configure(kind, policy)

        def fail_all(engine: Engine, number: int) -> None:
            for n in range(10):
                queue, order = f"{number}", kinds[::-1] if number % 2 else kinds
                made = engine.run([c.Submit(kind=kind, queue=queue) for kind in order])
                assert all(v.ok for v in made), n
                held = engine.claim(queue, worker="w", limit=len(kinds))
                failed = engine.run([c.Fail(message="no", retry_after_s=9999, **c.ticket(a)) for a in held])
                assert all(v.ok for v in failed)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(fail_all, [first, second] * 2, range(4)))
        assert [b.failures for b in first.breakers()] == [40] * len(kinds)
    assert deadlocks(own_url) == 0


def test_successes_of_a_sound_kind_do_not_wait_for_its_breaker(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine:
        engine.configure("mail", ONE.with_(breaker_failures=5))
        submit(engine)
        engine.fail(take(engine), "no", retry_after_s=9999)
        submit(engine)
        held = take(engine)
        with psycopg.connect(migrated_url) as other:
            other.execute("SELECT 1 FROM onetray.breaker FOR UPDATE")
            assert engine.succeed(held).state == "succeeded"
