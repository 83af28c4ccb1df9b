"""The pool of connections to PostgreSQL: what a worker opens ahead of need."""

from __future__ import annotations

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
