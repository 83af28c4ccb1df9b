"""Claims on PostgreSQL beside transactions that have locked ready rows: they wait for none, and find what was left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onetray.domain import commands as c
from onetray.domain.clock import VirtualClock
from onetray.domain.task import Assignment
from onetray.engine import Engine
from tests.support.engines import engine_on

WAYS: dict[str, dict[str, Any]] = {
    "of any kind": {},
    "of one kind": {"kinds": ("mail",)},
    "of two kinds": {"kinds": ("mail", "text")},
}
LOCK = "SELECT task FROM onetray.ready ORDER BY task LIMIT 3 FOR UPDATE"


@pytest.fixture
def engine(migrated_url: str, clock: VirtualClock) -> Iterator[Engine]:
    with engine_on(migrated_url, clock) as running:
        running.run([c.Submit(kind="mail") for _ in range(5)])
        yield running


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


@pytest.fixture
def other(migrated_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(migrated_url) as connection:
        yield connection


def claim(engine: Engine, limit: int, way: dict[str, Any]) -> list[int]:
    claimed: list[Assignment] = engine.call(c.Claim(worker="w", limit=limit, **way))
    return [assignment.key for assignment in claimed]


@pytest.mark.parametrize("savepoint", [False, True], ids=["by a transaction", "by a savepoint"])
@pytest.mark.parametrize("limit", [2, 10], ids=["as many as wanted", "fewer"])
def test_tasks_that_are_locked_are_passed_over(
    engine: Engine, other: psycopg.Connection[Any], way: dict[str, Any], limit: int, savepoint: bool
) -> None:
    if savepoint:
        other.execute("SAVEPOINT inner_one")
    locked = [task for (task,) in other.execute(LOCK).fetchall()]
    taken = claim(engine, limit, way)
    assert len(taken) == 2
    assert set(taken).isdisjoint(locked)
    other.rollback()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
@pytest.mark.parametrize("limit", [3, 5, 10])
def test_tasks_that_were_locked_and_left_are_claimed(
    engine: Engine, other: psycopg.Connection[Any], way: dict[str, Any], limit: int, ends: str
) -> None:
    locked = [task for (task,) in other.execute(LOCK).fetchall()]
    getattr(other, ends)()
    assert claim(engine, limit, way)[:3] == locked


def test_tasks_are_claimed_once_their_locks_are_gone(
    engine: Engine, other: psycopg.Connection[Any], way: dict[str, Any]
) -> None:
    locked = [task for (task,) in other.execute(LOCK).fetchall()]
    assert len(claim(engine, 2, way)) == 2
    other.rollback()
    engine.store.low_water.clear()  # type: ignore[attr-defined]
    assert claim(engine, 3, way) == locked
