"""A database with a row for each event is migrated to the log in batches, and nothing is lost."""

from __future__ import annotations

import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from onetray import failpoints
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import MigrationNeeded
from onetray.domain.task import Event
from onetray.engine import Engine
from onetray.store import old_events, open_store
from onetray.store.schema import migrations
from onetray.store.sql_template import POSTGRES, SQLITE
from tests.support import fleet, version_12
from tests.support.engines import engine_on

FIELDS = [field.name for field in fields(Event)]
FAR = 10_000_000
"""Seconds: after everything that the old database has seen."""


@pytest.fixture(params=[SQLITE, POSTGRES])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == SQLITE:
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    url: str = request.getfixturevalue("pg_url")
    return url


def migrate(url: str) -> list[int]:
    store = open_store(url, migrate=False)
    try:
        return store.migrate()
    finally:
        store.close()


def shown(engine: Engine, after: int = 0) -> list[dict[str, Any]]:
    return [as_dict(event) for event in engine.feed.read(after, 10_000).events]


def as_dict(event: Event) -> dict[str, Any]:
    """Not by `asdict`, which copies every payload."""
    return {name: getattr(event, name) for name in FIELDS}


def as_shown_now(event: dict[str, Any]) -> dict[str, Any]:
    """The note of a deletion also has the correlation id in its payload now."""
    if event["type"] == "job.deleted":
        return event | {"payload": event["payload"] | {"correlation_id": event["correlation_id"]}}
    return event


def must_be_as_before(url: str, before: list[dict[str, Any]]) -> None:
    expected = [as_shown_now(event) for event in before]
    with engine_on(url, VirtualClock()) as engine:
        assert shown(engine) == expected
        for cursor in [event["id"] for event in before][::40]:
            assert shown(engine, after=cursor) == [event for event in expected if event["id"] > cursor]
        for job in {event["job_id"] for event in before if event["type"] == "task.claimed"}:
            status = engine.job_status(job)
            own = engine.events(job) if status.entity == "task" else engine.flow_events(job)
            assert [as_dict(event) for event in own] == [e for e in expected if e["job_id"] == job]


@pytest.mark.parametrize("step", [7, 5_000])
def test_every_event_is_there_after_the_migration(empty_url: str, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(old_events, "STEP", step)
    before = version_12.make(empty_url)
    assert migrate(empty_url) == [n for n in migrations() if n > version_12.VERSION]
    must_be_as_before(empty_url, before)


def test_a_migrated_database_goes_on(empty_url: str) -> None:
    before = version_12.make(empty_url)
    migrate(empty_url)
    clock = VirtualClock()
    clock.advance(FAR)
    with engine_on(empty_url, clock) as engine:
        last = before[-1]["id"]
        (task,) = engine.claim("bulk", worker="new", limit=1)
        engine.succeed(task)
        new = engine.feed.read(last).events
        assert [e.type for e in new if e.job_id == task.id] == ["task.claimed", "task.started", "task.succeeded"]
        assert all(event.id > last for event in new)
        assert [e.version for e in engine.events(task.id)] == list(range(1, len(engine.events(task.id)) + 1))
        while engine.prune(0):
            pass


def dies_while_it_migrates(url: str, hits: int) -> None:
    old_events.STEP = 20
    left = hits

    def hook(point: str) -> None:
        nonlocal left
        left -= point == "committing"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.hook = hook
    migrate(url)


@pytest.mark.parametrize("hits", [1, 3, 9])
def test_a_migration_that_is_killed_goes_on_where_it_ended(empty_url: str, hits: int) -> None:
    before = version_12.make(empty_url)
    for _ in range(3):
        fleet.end_all([fleet.start(dies_while_it_migrates, empty_url, hits)], 60, exitcode=-signal.SIGKILL)
    store = open_store(empty_url, migrate=False)
    with pytest.raises(MigrationNeeded, match="run `onetray migrate --database "):
        store.check_version()
    store.close()
    migrate(empty_url)
    must_be_as_before(empty_url, before)


def test_two_that_migrate_at_once_lose_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = version_12.make(empty_url)
    fleet.end_all([fleet.start(migrate_in_small_steps, empty_url) for _ in range(3)], 60)
    must_be_as_before(empty_url, before)


def migrate_in_small_steps(url: str) -> None:
    old_events.STEP = 10
    migrate(url)
