"""The pool of connections to PostgreSQL: what a worker opens ahead of need."""

from __future__ import annotations

import pytest

from onetray.domain.commands import Succeed, ticket
from onetray.engine import Engine
from onetray.store.pg_pipeline import PreparedNames
from onetray.store.postgres import PostgresStore
from tests.support.waits import wait_until


def test_connections_for_concurrent_writes_are_opened_ahead_and_not_twice(pg_url: str) -> None:
    store = PostgresStore(pg_url, connections=5)
    try:
        for _ in range(2):
            store.expect_writes()
            wait_until(lambda: store._pool.get_stats().get("pool_available") == store.writers)
        assert store._pool.get_stats()["pool_size"] == store.writers
        assert (store._pool.min_size, store._pool.max_size) == (1, 5)
    finally:
        store.close()


def test_no_more_connections_are_opened_than_are_allowed(pg_url: str) -> None:
    store = PostgresStore(pg_url, connections=2)
    try:
        store.expect_writes()
        wait_until(lambda: store._pool.get_stats().get("pool_available") == 2)
        assert store._pool.get_stats()["pool_size"] == 2
    finally:
        store.close()


def test_the_first_claims_and_reports_of_a_worker_prepare_no_statement(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.open(migrated_url) as submitter:
        for number in range(6):
            submitter.submit("warm", {"number": number}, queue="warm")
    # Nothing else has used it: the threads of an engine may open connections, too.
    store = PostgresStore(migrated_url)
    events = store.read_sql("SELECT count(*) FROM onetray.event_batch")
    store.expect_writes()
    wait_until(lambda: store._pool.get_stats().get("pool_available") == store.writers)
    assert store.read_sql("SELECT count(*) FROM onetray.event_batch") == events
    with Engine(store) as engine:
        added: list[str] = []
        add = PreparedNames.add

        def note(self: PreparedNames, key: tuple[str, tuple[int, ...]]) -> bytes:
            added.append(key[0])
            return add(self, key)

        monkeypatch.setattr(PreparedNames, "add", note)
        for turn in range(2):
            # The second claim starts at the mark that the first one has set.
            claimed = engine.claim("warm", worker="w", limit=2, request_key=str(turn))
            reports = [Succeed(ran_s=n / 100_000, **ticket(a)) for n, a in enumerate(claimed, 1)]
            assert [verdict.error for verdict in engine.run(reports)] == [None, None]
        # The names of queues and kinds are read once for a process, whatever it does.
        tables = ("onetray.task", "onetray.ready", "onetray.lease", "onetray.event_batch", "advisory")
        assert [sql for sql in added if any(table in sql for table in tables)] == []


def test_a_warm_up_that_fails_leaves_usable_connections(pg_url: str) -> None:
    # The database is empty: there is no table to warm up with.
    store = PostgresStore(pg_url)
    try:
        store.expect_writes()
        wait_until(lambda: store._pool.get_stats().get("pool_available") == store.writers)
        assert [store.read_sql("SELECT 1") for _ in range(4)] == [[(1,)]] * 4
    finally:
        store.close()
