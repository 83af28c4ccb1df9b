"""What only PostgreSQL has: statements sent together, and what remains of them when one fails."""

import psycopg
import pytest

from onetray.store import open_store
from onetray.store.base import Store


def note(store: Store, task: int, *, after: int | None, more: int = 0) -> None:
    """Note that a task is due, behind another statement that PostgreSQL refuses when it is given no task."""
    with store.transaction() as tx:
        tx.batch("insert_ready", {"queue": [1], "rank": [0], "key": [after], "kind": [1]})
        for key in range(task, task + 1 + more):
            tx.batch("insert_due", {"at": [1], "key": [key], "what": ["run"], "fence": [1]})


def test_a_statement_that_was_sent_behind_a_failed_one_works_the_next_time(migrated_url: str) -> None:
    store = open_store(migrated_url, connections=1)
    try:
        for round_ in range(8):
            with pytest.raises(psycopg.errors.NotNullViolation):
                note(store, round_, after=None)
            note(store, round_, after=round_)
        assert store.read_sql("SELECT count(*) FROM onetray.due") == [(8,)]
    finally:
        store.close()


def test_an_error_that_comes_while_more_is_sent_is_raised_once_and_not_logged(
    migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(migrated_url, connections=1)
    try:
        for round_ in range(5):
            with pytest.raises(psycopg.errors.NotNullViolation):
                note(store, round_, after=None, more=300)
            note(store, round_, after=round_)
        assert [record.getMessage() for record in caplog.records if record.name.startswith("psycopg")] == []
    finally:
        store.close()
