"""PostgreSQL keeps what was deleted while an old snapshot is open. Claims must not pay for it, nor miss anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from tests.support.crowd import execute

from onetray.commands import Claim, Submit
from onetray.engine import Engine
from onetray.model import Assignment
from onetray.store.postgres import PostgresStore
from tests.support.engines import engine_on
from tests.support.plans import analysed, buffers

GONE = 50_000
PATIENCE_S = 30.0


@pytest.fixture
def engine(migrated_url: str) -> Iterator[Engine]:
    with engine_on(migrated_url) as running:
        yield running


def store_of(engine: Engine) -> PostgresStore:
    assert isinstance(engine.store, PostgresStore)
    return engine.store


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """A session that still sees everything as it is now."""
    with psycopg.connect(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM onetray.ready")
        yield


def leave_gone_rows(engine: Engine) -> None:
    """What 50,000 claims leave behind: ready rows that are deleted, but not for everybody."""
    store = store_of(engine)
    rows = f"SELECT 1, 0, n, 1 FROM generate_series(1, {GONE}) AS n"
    for sql in (
        f"SELECT setval('onetray.entity_key', {GONE})",
        f"INSERT INTO onetray.ready (queue, rank, task, kind) {rows}",
        "DELETE FROM onetray.ready",
    ):
        with store.transaction() as tx:
            execute(tx, sql)


def take(engine: Engine, limit: int = 1) -> list[Assignment]:
    claimed: list[Assignment] = engine.run([Claim(worker="w", limit=limit)])[0].unwrap()
    return claimed


def until_claimed(engine: Engine, wanted: Callable[[Assignment], bool]) -> int:
    """Claim one by one until the wanted task comes; how many others came before it."""
    give_up_at, others = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < give_up_at:
        for one in take(engine):
            if wanted(one):
                return others
            others += 1
    raise AssertionError("the task was never claimed")


def test_claims_do_not_step_over_what_is_gone(engine: Engine) -> None:
    engine.submit("mail")
    engine.succeed(take(engine)[0])
    store, claim_any = store_of(engine), store_of(engine).book.statements["claim_any"]
    start = {"queue": 1, "rank": -(2**31), "task": 0, "limit": 10, "now": None}
    with old_snapshot(store.url):
        leave_gone_rows(engine)
        engine.run([Submit(kind="mail") for _ in range(500)])
        take(engine, 10)
        low = store.low_water[1]
        from_mark = analysed(store, claim_any, {**start, "rank": low.rank, "task": low.task})
        # The trap is really there, and the mark is past it.
        assert buffers(analysed(store, claim_any, start)) > 300
        assert buffers(from_mark) < 200
        assert low.task > GONE


def test_what_is_given_back_before_the_mark_is_claimed_next(engine: Engine) -> None:
    engine.run([Submit(kind="mail") for _ in range(300)])
    (first, *_) = take(engine, 100)
    take(engine, 100)
    engine.release(first)
    assert [a.id for a in take(engine)] == [first.id]


def test_a_higher_priority_is_claimed_next(engine: Engine) -> None:
    engine.run([Submit(kind="mail") for _ in range(300)])
    take(engine, 100)
    urgent = engine.submit("mail", priority=5)
    assert [a.id for a in take(engine)] == [urgent.id]


def test_what_another_process_puts_before_the_mark_is_claimed_soon(engine: Engine, migrated_url: str) -> None:
    engine.run([Submit(kind="mail") for _ in range(5_000)])
    take(engine, 100)
    with engine_on(migrated_url) as other:
        urgent = other.submit("mail", priority=5)
    assert until_claimed(engine, lambda a: a.id == urgent.id) < 4_900


def test_what_was_committed_late_is_claimed_although_the_mark_has_passed_it(engine: Engine, migrated_url: str) -> None:
    engine.submit("mail")
    with engine_on(migrated_url) as other, psycopg.connect(migrated_url) as writer:
        late = other.submit("mail", payload="late")
        # As if its transaction were still open: its ready row goes, and comes back at the end.
        row = writer.execute("DELETE FROM onetray.ready WHERE rank = 0 AND task = 2 RETURNING *").fetchone()
        writer.commit()
        writer.execute("INSERT INTO onetray.ready VALUES (%s, %s, %s, %s)", row)
        engine.run([Submit(kind="mail") for _ in range(5_000)])
        take(engine, 200)
        writer.commit()
    assert until_claimed(engine, lambda a: a.id == late.id) < 4_900
