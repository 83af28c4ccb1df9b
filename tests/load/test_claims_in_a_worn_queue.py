"""PostgreSQL under wear: updates stay on their page, and a claim does not step over what others have deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.task import Assignment
from onetray.engine import Engine
from onetray.store.base import Rows
from onetray.store.postgres import PostgresStore
from onetray.store.postgres_tx import PostgresTx
from tests.support.engines import engine_on
from tests.support.plans import Cost, on_postgres

START = (-(2**31), 0)


def submit(engine: Engine, many: int) -> None:
    for _ in range(0, many, 500):
        for verdict in engine.run([Submit(kind="noop") for _ in range(min(500, many))]):
            verdict.unwrap()


def claim(engine: Engine, limit: int) -> list[Assignment]:
    found: list[Assignment] = engine.run([Claim(worker="w", limit=limit)])[0].unwrap()
    return found


def succeed(engine: Engine, claimed: list[Assignment]) -> None:
    for verdict in engine.run([Succeed(**ticket(a)) for a in claimed]):
        verdict.unwrap()


def drain(engine: Engine, many: int, batch: int) -> None:
    for _ in range(0, many, batch):
        succeed(engine, claim(engine, batch))


def until(met: Callable[[], bool], seconds: float, pause: Callable[[], object]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if met():
            return True
        pause()
    return met()


def test_nearly_all_updates_of_tasks_stay_on_their_page(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine, psycopg.connect(migrated_url, autocommit=True) as watch:

        def updates() -> tuple[int, int]:
            watch.execute("SELECT pg_stat_clear_snapshot()")
            found = watch.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
                "WHERE schemaname = 'onetray' AND relname = 'task'"
            ).fetchall()
            return found[0][0], found[0][1]

        before = updates()
        submit(engine, 2_000)
        drain(engine, 2_000, 100)
        # A server process reports what it did at most once a second, when a statement of its own ends.
        arrived = until(
            lambda: updates()[0] - before[0] >= 4_000,
            30.0,
            lambda: (engine.sweep(), watch.execute("SELECT pg_sleep(0.1)")),
        )
        after = updates()
        assert arrived, (before, after)
        assert (after[1] - before[1]) / (after[0] - before[0]) >= 0.9, (before, after)


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """What is deleted from now on cannot be cleaned away."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM onetray.ready")
        yield


# Of one task: what a claim of many locks would hide what it steps over.
def cost_from(engine: Engine, rank: int, task: int) -> Cost:
    store = engine.store
    assert isinstance(store, PostgresStore)
    (queue,) = store.low_water
    params = {"queue": queue, "rank": rank, "task": task, "limit": 1, "past_breakers": 0}
    return on_postgres(store, store.statements.by_name["claim_any"], params, generic=False, warm=False)


def test_a_claim_does_not_step_over_what_an_old_snapshot_keeps(migrated_url: str) -> None:
    # Verified once, when the first engine is done: it takes as long as all that these tasks go through.
    with engine_on(migrated_url) as engine, Engine.open(migrated_url) as other, old_snapshot(migrated_url):
        store = engine.store
        assert isinstance(store, PostgresStore)
        submit(engine, 20_000)
        first = claim(engine, 1)
        drain(engine, 20_000, 500)
        submit(engine, 600)
        held = claim(engine, 100)
        assert len(held) == 100
        (low,) = store.low_water.values()
        at_mark, from_start = cost_from(engine, low.rank, low.task), cost_from(engine, *START)
        assert at_mark.buffers * 10 <= from_start.buffers, (at_mark, from_start)
        assert at_mark.buffers <= 40, at_mark

        engine.release(first[0])
        above = other.submit("noop", priority=9)
        wanted = {first[0].id, above.id}
        seen: set[str] = set()

        def all_seen() -> bool:
            claimed = claim(engine, 10)
            seen.update(a.id for a in claimed)
            succeed(engine, claimed)
            return wanted <= seen

        with psycopg.connect(migrated_url, autocommit=True) as pause:
            began = time.monotonic()
            assert until(all_seen, 10.0, lambda: pause.execute("SELECT pg_sleep(0.05)")), wanted - seen
            assert time.monotonic() - began < 6.0
        succeed(engine, held)


def test_a_queue_that_was_empty_when_it_was_looked_at_is_not_read_whole(migrated_url: str) -> None:
    with engine_on(migrated_url) as engine, old_snapshot(migrated_url):
        store = engine.store
        assert isinstance(store, PostgresStore)
        submit(engine, 5_000)
        drain(engine, 5_000, 500)
        with psycopg.connect(migrated_url, autocommit=True) as other:
            other.execute("ANALYZE onetray.ready, onetray.due, onetray.lease")
            ((rows, pages),) = other.execute(
                "SELECT reltuples, relpages FROM pg_class WHERE oid = 'onetray.ready'::regclass"
            ).fetchall()
        assert rows == 0
        submit(engine, 500)
        (queue,) = store.low_water
        found = store.read_sql("SELECT task, kind FROM onetray.ready ORDER BY task LIMIT 100")
        keys = [key for key, _ in found]
        given = {"queue": queue, "rank": [0] * len(keys), "key": keys, "kind": [kind for _, kind in found]}
        for name in ("delete_ready", "take_ready"):
            for generic in (False, True):
                statement = store.statements.for_batch(name, given)
                cost = on_postgres(store, statement, given, generic=generic, warm=False)
                # A few for each row, and not a page for each that was there.
                assert cost.buffers <= 8 * len(keys), (name, generic, cost, pages)
        drain(engine, 500, 100)


def test_a_task_that_is_committed_while_a_later_one_is_claimed_is_found_next(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(migrated_url) as engine:
        store = engine.store
        assert isinstance(store, PostgresStore)
        submit(engine, 1)
        drain(engine, 1, 1)
        (low,) = store.low_water.values()
        held, go, first = threading.Event(), threading.Event(), iter([True])

        def hold_the_first(point: str) -> None:
            if point == "committing" and next(first, False):
                held.set()
                assert go.wait(20)

        monkeypatch.setattr("onetray.failpoints.hook", hold_the_first)
        # Its key is drawn, and it is not committed.
        late = threading.Thread(target=submit, args=(engine, 1))
        late.start()
        assert held.wait(20)
        submit(engine, 1)
        look = PostgresTx._claim_any

        def slow(tx: PostgresTx, *place: Any) -> Rows:
            found = look(tx, *place)
            go.set()
            late.join(20)
            return found

        monkeypatch.setattr(PostgresTx, "_claim_any", slow)
        # As after a look from the start that was slow: the next one is not due for ten seconds.
        low.scanned_at = time.monotonic()
        low.costs.extend([1.0, 1.0, 1.0])
        assert [len(claim(engine, 1)) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("how", ["rolled back", "committed"])
def test_a_task_that_was_locked_and_not_claimed_is_found_next(how: str, migrated_url: str) -> None:
    with engine_on(migrated_url) as engine:
        store = engine.store
        assert isinstance(store, PostgresStore)
        submit(engine, 1)
        drain(engine, 1, 1)
        submit(engine, 2)
        ((queue, low),) = store.low_water.items()
        with ThreadPoolExecutor(1) as other, suppress(ZeroDivisionError), store.transaction() as tx:
            (locked,) = tx.pick(queue, None, 1)
            (second,) = other.submit(claim, engine, 1).result()
            assert second.key != locked.key
            # Scans from the start are slow, and the last one was just now.
            low.costs.extend([1.0, 1.0, 1.0])
            assert other.submit(claim, engine, 1).result() == []
            if how == "rolled back":
                raise ZeroDivisionError
        (first,) = claim(engine, 1)
        assert first.key == locked.key
        succeed(engine, [first, second])
