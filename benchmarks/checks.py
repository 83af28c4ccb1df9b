"""Was it really done? A round counts only when its database is sound and its log is whole."""

from __future__ import annotations

from onetray.engine import Engine
from onetray.verify import verify

EVENTS = 4
"""Of a job that succeeds at once: submit, claim, start, succeed."""
_VERSIONS = """
SELECT (SELECT coalesce(sum(version), 0) FROM onetray.task) + (SELECT coalesce(sum(version), 0) FROM onetray.stage)
    + (SELECT coalesce(sum(version), 0) FROM onetray.flow),
    (SELECT count(*) FROM onetray.event WHERE version IS NOT NULL)"""
_TASKS = "SELECT count(*), count(finished_at), coalesce(sum(version), 0) FROM onetray.task"


def must_be_done(engine: Engine, jobs: int) -> None:
    """Every job has succeeded at once, with one event for each of its four transitions."""
    tasks, finished, versions = engine.store.read_sql(_TASKS)[0]
    assert [tasks, finished, versions] == [jobs, jobs, EVENTS * jobs], (tasks, finished, versions)
    must_be_sound(engine)


def must_be_queued(engine: Engine, jobs: int) -> None:
    """Every job is there, and nothing but its submit has happened to it."""
    tasks, finished, versions = engine.store.read_sql(_TASKS)[0]
    assert [tasks, finished, versions] == [jobs, 0, jobs], (tasks, finished, versions)
    must_be_sound(engine)


def must_have_ended(engine: Engine, tasks: int) -> None:
    """Every task has ended, however often it was claimed: a worker may give back what it cannot begin soon."""
    found = engine.store.read_sql(_TASKS)[0]
    assert [*found[:2]] == [tasks, tasks], found
    must_be_sound(engine)


def must_be_sound(engine: Engine) -> None:
    """There are as many events as transitions, and the database verifies."""
    must_add_up(engine)
    found = verify(engine.store)
    assert found.ok, [v.name for v in found.violations]


def must_add_up(engine: Engine) -> None:
    versions, events = engine.store.read_sql(_VERSIONS)[0]
    assert versions == events, f"{versions} transitions have {events} events"
