"""Snapshots of the jobs of an engine, taken after each step, and their comparison with what the log tells of them.

Owns which fields are compared: all, except those that `unknown` lists, that are about the present (actions), or that
change when another job is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest.mock import patch

from onetray.domain.errors import NotFound
from onetray.domain.past import PastJob
from onetray.engine import Engine
from onetray.store.base import Rows, Store

JOBS = """
SELECT key, CAST(id AS text), 1 FROM onetray.flow UNION ALL SELECT key, CAST(id AS text), 0 FROM onetray.task
WHERE stage IS NULL
"""
NEW = "SELECT e.job, max(e.id) FROM onetray.event AS e WHERE e.id > :after GROUP BY e.job"
ALL = "SELECT e.id, CAST(coalesce(t.id, s.id, f.id) AS text), e.version, e.state, e.job FROM onetray.event AS e " \
    "LEFT JOIN onetray.task AS t ON t.key = e.entity LEFT JOIN onetray.stage AS s ON s.key = e.entity " \
    "LEFT JOIN onetray.flow AS f ON f.key = e.entity ORDER BY e.id"  # fmt: skip
OF_THE_PRESENT = {"not_now", "actor", "redacts", "retry_of", "carried_from", "compensates", "compensation"}
MAY_BE_UNKNOWN = {
    "lease", "lease_expires_at", "priority", "sealed", "ending", "ending_how", "current_stage", "due_at", "metadata",
    "metrics", "approval", "answer", "errors", "error_count", "reported_progress",
}  # fmt: skip
"""Everything else must be known of a job whose log this version has written."""


class Album:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.last_event = engine, 0
        self.pictures: dict[tuple[str, int], list[Any]] = {}
        self._pasts: dict[tuple[str, int], PastJob] = {}
        self._events: dict[str, list[int]] = {}

    def take(self) -> None:
        """A snapshot of each job with new events, under its last event."""
        read = self.engine.store.read_sql
        jobs = {key: (id_, is_flow) for key, id_, is_flow in read(JOBS)}
        for job, last in read(NEW, after=self.last_event):
            self.last_event = max(self.last_event, last)
            if job in jobs:
                id_, is_flow = jobs[job]
                self.pictures[id_, last] = self._flow(id_) if is_flow else [self.engine.task(id_)]

    def _flow(self, id_: str) -> list[Any]:
        stages = self.engine.stages(id_)
        tasks = [self.engine.task(member.id) for member in self.engine.members(id_, limit=1_000)]
        return [self.engine.flow(id_), *stages, *tasks]

    def compare(self) -> int:
        """Each snapshot must be what the log tells. Returns how many were compared."""
        compared = 0
        for (id_, event), picture in self.pictures.items():
            try:
                past = self._at(id_, event)
            except NotFound:
                assert not self._exists(id_)
                continue
            compared += 1
            self._compare(past, picture)
            if past.flow is not None:
                self._compare_members(picture, event)
        return compared

    def _at(self, id_: str, event: int) -> PastJob:
        """What the log tells; once it is compared, nothing is added to it."""
        if (id_, event) not in self._pasts:
            self._pasts[id_, event] = self.engine.at(id_, event, tasks=1_000)
        return self._pasts[id_, event]

    def _events_of(self, id_: str) -> list[int]:
        if id_ not in self._events:
            self._events[id_] = [event.id for event in self.engine.events(id_)]
        return self._events[id_]

    def _exists(self, id_: str) -> bool:
        return any(id_ == other for _, other, _ in self.engine.store.read_sql(JOBS))

    def _compare(self, past: PastJob, picture: list[Any]) -> None:
        found = {value.id: value for value in (past.job, *past.stages, *past.tasks)}
        assert found.keys() == {value.id for value in picture}, past
        for value in picture:
            differing = differences(value, found[value.id], past.unknown.get(value.id, []))
            assert not differing, f"at event {past.event}, {type(value).__name__} {value.id}: {differing}"

    def _compare_members(self, picture: list[Any], event: int) -> None:
        """A task of a flow by itself, at its last event so far."""
        for value in picture:
            if hasattr(value, "fence"):
                own = [id_ for id_ in self._events_of(value.id) if id_ <= event]
                past = self._at(value.id, own[-1])
                # Its flow may have gone on since that event, and a redrive takes its name.
                unknown = [*past.unknown.get(value.id, []), "priority", "unmet", "name"]
                differing = differences(value, past.job, unknown)
                assert not differing, f"at event {own[-1]}, task {value.id} by itself: {differing}"

    def replay(self) -> None:
        """At every event, also inside a transaction, the entity has the event's version and state."""
        jobs = {key: id_ for key, id_, _ in self.engine.store.read_sql(JOBS)}
        for event, entity, version, state, job in self.engine.store.read_sql(ALL):
            if job not in jobs:
                continue  # It is about a queue, or about a job that was deleted.
            past = self._at(jobs[job], event)
            if version is not None:
                (value,) = [v for v in (past.job, *past.stages, *past.tasks) if v.id == entity]
                assert (value.version, value.state) == (version, state), (event, value)
                assert value.actions == ()


@contextmanager
def each_read_once(store: Store) -> Iterator[None]:
    """Answer a read that was made before from memory: nothing changes meanwhile.

    Each event of a flow is looked at, and each look reads nearly all that the last one has read.
    """
    read, known = store.read, dict[str, Rows]()

    def read_once(name: str, /, **params: Any) -> Rows:
        wanted = repr((name, params))
        if wanted not in known:
            known[wanted] = read(name, **params)
        return list(known[wanted])

    with patch.object(store, "read", read_once):
        yield


def differences(real: Any, past: Any, unknown: list[str]) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, with the real and the rebuilt value."""
    assert type(real) is type(past)
    assert set(unknown) <= MAY_BE_UNKNOWN | {"unmet", "name"}, unknown
    names = {field.name for field in fields(real)} - OF_THE_PRESENT - set(unknown)
    pairs = {name: (getattr(real, name), getattr(past, name)) for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
