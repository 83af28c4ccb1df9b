"""How the databases run the statements: by index, whatever the tables' size and whatever the statistics say.

The crowd has 100,000 tasks here, which load in seconds; `./go bench growth` has a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from onetray.commands import Submit
from onetray.engine import Engine
from onetray.lifecycle import ASSIGNED, TASK
from onetray.store import open_store
from onetray.store.base import Columns, Store
from onetray.store.postgres import PostgresStore
from onetray.store.sqlite import SqliteStore
from onetray.store.sqltext import PARAM, Statement
from tests.support.cluster import Server
from tests.support.crowd import fill
from tests.support.plans import analysed, buffers, rows_read, sorts, steps_taken, whole_tables

CROWD, CLAIMABLE = 100_000, 1_000
BATCHES = (1, 10, 100, 500)
STATISTICS = ("absent", "of an empty table", "true")
CLAIMS = ("claim_any", "claim_kind", "heads_of_kind")
READS = ("events_of_task", "events_after")


class Scene(NamedTuple):
    """A database whose statements are looked at."""

    store: Store
    size: int

    @property
    def claimable(self) -> list[int]:
        return list(range(self.size + 1, self.size + CLAIMABLE + 1))


def scene(store: Store, size: int, statistics: str) -> Scene:
    store.migrate()
    if isinstance(store, PostgresStore):
        _run(
            store.url,
            *(f"ALTER TABLE onetray.{t} SET (autovacuum_enabled = false)" for t in ("task", "event", "ready")),
        )
    if statistics == "of an empty table":
        _analyse(store)
    if size:
        fill(store, size, kind="noop")
    engine = Engine(store)
    engine.run([Submit(kind="noop") for _ in range(CLAIMABLE)])
    if statistics == "true":
        _analyse(store)
    return Scene(store, size)


def _analyse(store: Store) -> None:
    if isinstance(store, SqliteStore):
        with store.transaction() as tx:
            tx._connection.execute("ANALYZE")
    else:
        assert isinstance(store, PostgresStore)
        _run(store.url, "ANALYZE")


def _run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for sql in statements:
            connection.execute(sql.encode())


@contextmanager
def opened(which: str, postgres: Server, folder: Path, size: int, statistics: str) -> Iterator[Scene]:
    if which == "sqlite":
        store = open_store(f"sqlite:///{folder / 'jobs.db'}")
        try:
            yield scene(store, size, statistics)
        finally:
            store.close()
        return
    with postgres.database() as url:
        store = open_store(url)
        try:
            yield scene(store, size, statistics)
        finally:
            store.close()


@pytest.fixture(
    scope="module",
    params=[(w, size, s) for w in ("sqlite", "postgres") for size in (0, CROWD) for s in STATISTICS],
    ids=lambda p: f"{p[0]}-{p[1]}-statistics {p[2]}",
)
def here(request: pytest.FixtureRequest, postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    which, size, statistics = request.param
    with opened(which, postgres, tmp_path_factory.mktemp("plans"), size, statistics) as found:
        yield found


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def crowded(
    request: pytest.FixtureRequest, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    with opened(request.param, postgres, tmp_path_factory.mktemp("crowd"), CROWD, "absent") as found:
        yield found


def claim(name: str, limit: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"queue": 1, "limit": limit}
    return {**asked, "rank": -(2**31), "task": 0} if name == "claim_any" else {**asked, "kind": 1}


def batch_of(statement: Statement, keys: list[int]) -> dict[str, Any]:
    """Some values for every column of a batch."""
    values: dict[str, Any] = dict.fromkeys(statement.columns)
    numbers = {"queue": 1, "rank": 0, "kind": 1, "version": 1, "fence": 1, "lease": 1, "at": 1, "began": 1, "run_at": 1}
    numbers |= {"given_back": 0, "spared": 0}
    return {name: keys if name == "key" else [numbers.get(name)] * len(keys) for name in values}


def asked(store: Store, keys: list[int]) -> dict[str, Columns]:
    """The statements that are looked at, with what the engine would ask."""
    n, far = len(keys), 2**52
    ids = [id_ for (id_,) in store.read_sql("SELECT CAST(id AS text) FROM onetray.task ORDER BY key DESC LIMIT 500")]
    return {
        "lock_tasks": {"keys": keys, "now": 1},
        "keys_of": {"ids": ids[:n]},
        "expired_leases": {"before": far, "limit": n},
        "due_now": {"now": far, "limit": n, "known": ["run"]},
        "events_of_task": {"key": keys[0], "after": 0, "limit": 1000},
        "events_after": {
            "after": 10, "upto": far, "namespace": None, "limit": n, "scan": 1000, "every": 1, "types": [],
        },
        "prunable_jobs": {"after": 0, "before": far, "ns": None, "limit": n, "now": 1},
        "held_tasks": {"keys": keys},
        "claimed_again": {"keys": keys},
        "prune_events": {"keys": keys},
        "prune_tasks": {"keys": keys},
        "last_holders": {"keys": keys, "held": [ASSIGNED]},
    }  # fmt: skip


def complete(statement: Statement, params: Columns) -> Columns:
    """Nothing for whatever the statement asks besides."""
    return {**dict.fromkeys(PARAM.findall(statement.sql)), **params}


def test_no_statement_reads_a_whole_table(here: Scene) -> None:
    store, statements = here.store, here.store.book.statements
    found = {}
    for size in BATCHES:
        keys = here.claimable[:size]
        looked_at = {**asked(store, keys), **{name: claim(name, size) for name in CLAIMS}}
        for name in ("delete_ready", "take_ready", "set_run_at", "insert_note"):
            looked_at[name] = batch_of(statements[name], keys)
        for name, params in looked_at.items():
            if name in READS and not here.size:
                continue  # A table of a few pages may well be read from end to end.
            given = complete(statements[name], params)
            found[name, size] = whole_tables(store, statements[name], given, read=name in READS)
    assert {name: steps for name, steps in found.items() if steps} == {}


def test_no_move_reads_a_whole_table(here: Scene) -> None:
    found = {}
    for names in here.store.book.moves:
        hops = tuple(TASK.by_name[name] for name in names)
        for size in BATCHES:
            whole = batch_of(here.store.book.move(hops, {}).update, here.claimable[:size])
            mostly_alike = {c: v if c in ("key", "version", "fence", "was") else v[0] for c, v in whole.items()}
            for columns in (whole, mostly_alike):
                move = here.store.book.move(hops, columns)
                for statement in filter(None, (move.update, move.events)):
                    given = complete(statement, columns)
                    found[statement.sql, size] = whole_tables(here.store, statement, given)
    assert {sql: steps for sql, steps in found.items() if steps} == {}


def test_a_claim_reads_in_order_and_sorts_nothing(here: Scene) -> None:
    statements = here.store.book.statements
    found = {
        (name, limit): sorts(here.store, statements[name], complete(statements[name], claim(name, limit)))
        for name in CLAIMS
        for limit in BATCHES
    }
    assert {name: steps for name, steps in found.items() if steps} == {}


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("limit", BATCHES)
def test_a_claim_touches_no_more_than_it_returns(crowded: Scene, name: str, limit: int, tmp_path: Path) -> None:
    store = crowded.store
    statement, params = store.book.statements[name], claim(name, limit)
    if isinstance(store, PostgresStore):
        plan = analysed(store, statement, complete(statement, params))
        assert rows_read(plan, "ready") <= limit + 1
        assert rows_read(plan, "task") <= limit + 1
        # A task: three levels of its index, the row, its lock; a ready row and its lock; and the way down.
        assert buffers(plan) <= 8 * limit + 60
        return
    assert isinstance(store, SqliteStore)
    alone = open_store(f"sqlite:///{tmp_path / 'alone.db'}")
    assert isinstance(alone, SqliteStore)
    try:
        scene(alone, 0, "absent")
        assert steps_taken(store, statement, params) <= steps_taken(alone, statement, params) + 1
    finally:
        alone.close()
