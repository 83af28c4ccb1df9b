"""Statements in one round trip to PostgreSQL: values come back as they were sent, and errors harm nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onetray.store import pg_pipeline
from onetray.store.pg_connections import ServerConnection
from onetray.store.pg_pipeline import PreparedNames, numbered, run_queries

TEXTS = [
    "",
    " ",
    "a",
    'say "hi"',
    "back\\slash",
    '\\"',
    "{braces}",
    "a,b",
    "NULL",
    "null",
    "é☂\U0001f4a5",
    "new\nline",
    "'",
]


@pytest.fixture(params=["prepared", "behind a pooler"])
def connection(request: pytest.FixtureRequest, pg_url: str) -> Iterator[ServerConnection]:
    with ServerConnection.connect(pg_url, autocommit=True, prepare_threshold=None) as connection:
        if request.param == "prepared":
            connection.prepared_names = PreparedNames()
        yield connection


def asked(connection: ServerConnection, sql: str, **params: Any) -> Any:
    return run_queries(connection, [(sql, params)])[0]


def test_values_come_back_as_they_were_sent(connection: ServerConnection) -> None:
    sql = "SELECT %(t)s::text, %(i)s, %(b)s, %(f)s, %(n)s::text, %(l)s::text[], 100 %% 7, %(t)s::text"
    for text in TEXTS:
        row = text, 2**62, True, 0.1, None, [*TEXTS, None], 2, text
        params = {"t": text, "i": 2**62, "b": True, "f": 0.1, "n": None, "l": [*TEXTS, None]}
        assert asked(connection, sql, **params) == [row]
    assert asked(connection, "SELECT %(l)s::bigint[]", l=[1, None, -(2**62)]) == [([1, None, -(2**62)],)]
    assert asked(connection, "SELECT %(l)s::text[]", l=[]) == [([],)]


def test_a_placeholder_has_one_number_wherever_it_stands() -> None:
    assert numbered("SELECT %(a)s, %(b)s, %(a)s, 5 %% 2") == (b"SELECT $1, $2, $1, 5 % 2", ("a", "b"))


def test_a_value_that_cannot_be_sent_harms_nothing(connection: ServerConnection) -> None:
    for bad, error in (("a\0b", psycopg.DataError), (object(), TypeError), ("\ud800", UnicodeEncodeError)):
        with pytest.raises(error):
            run_queries(connection, [("SELECT 1", {}), ("SELECT %(v)s::text", {"v": bad})])
        with pytest.raises(error):
            asked(connection, "SELECT %(v)s::text[]", v=[bad])
    assert asked(connection, "SELECT 1") == [(1,)]


def test_the_first_error_is_raised_and_nothing_after_it_runs(connection: ServerConnection) -> None:
    asked(connection, "CREATE TABLE t (n bigint)")
    later = "INSERT INTO t VALUES (2)"
    with pytest.raises(psycopg.errors.DivisionByZero) as e:
        run_queries(connection, [("INSERT INTO t VALUES (1)", {}), ("SELECT 1 / %(n)s", {"n": 0}), (later, {})])
    assert e.value.sqlstate == "22012"
    # Also what was to be prepared behind it.
    assert asked(connection, later) == []
    assert asked(connection, "SELECT n FROM t") == [(2,)]


def test_a_statement_that_is_none_is_refused_each_time(connection: ServerConnection) -> None:
    for _ in range(2):
        with pytest.raises(psycopg.errors.SyntaxError):
            asked(connection, "SELEC 1")
    assert asked(connection, "SELECT 1") == [(1,)]


def test_an_error_at_the_commit_is_an_error(connection: ServerConnection) -> None:
    asked(connection, "CREATE TABLE t (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        asked(connection, "INSERT INTO t VALUES (1), (1)")
    assert asked(connection, "SELECT count(*) FROM t") == [(0,)]


def test_only_so_many_statements_stay_prepared(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pg_pipeline, "MAX_PREPARED", 3)
    with ServerConnection.connect(pg_url, autocommit=True, prepare_threshold=None) as connection:
        connection.prepared_names = PreparedNames()
        for n in (1, 2, 3, 1, 4, 5, 1, 2, 2, 1):
            assert run_queries(connection, [(f"SELECT {n}", {}), ("SELECT 0", {})]) == [[(n,)], [(0,)]]
        ((kept,),) = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
        assert kept == len(connection.prepared_names) == 3


def test_more_than_the_buffers_hold_goes_both_ways(connection: ServerConnection) -> None:
    """A client that only sends, to a server that only sends, would wait for ever."""
    texts = [str(n) * 1_000_000 for n in range(8)]
    assert run_queries(connection, [("SELECT %(t)s::text", {"t": text}) for text in texts]) == [[(t,)] for t in texts]


def test_a_lost_connection_is_an_error_and_closed(connection: ServerConnection, pg_url: str) -> None:
    pid = connection.info.backend_pid
    with psycopg.connect(pg_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    with pytest.raises(psycopg.OperationalError):
        asked(connection, "SELECT 1")
    assert connection.closed
    with pytest.raises(psycopg.OperationalError):
        asked(connection, "SELECT 1")
