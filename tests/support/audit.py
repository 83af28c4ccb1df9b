"""Check a database from its log alone: nothing claimed twice, nothing moved back, every event accounted for.

Reads the rows itself and shares no code with the engine's decisions, so that a wrong rule there is not trusted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import psycopg

from onetray.domain.lifecycle import HELD, TASK
from onetray.store.base import Store
from tests.support.fleet import wait_until

PAIRS = TASK.pairs
_EVENTS = """
SELECT e.entity, e.version, e.fence, e.type, e.was, e.state, e.actor FROM onetray.event AS e
WHERE e.version IS NOT NULL ORDER BY e.entity, e.version
"""
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TASKS = "SELECT key, CAST(id AS text), state, version, fence, owner, lease FROM onetray.task ORDER BY key"


@dataclass
class Audit:
    """What was found in the log: figures for people, faults for the test."""

    tasks: int = 0
    events: int = 0
    states: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def still_open(self) -> int:
        return sum(n for state, n in self.states.items() if state not in TASK.terminal)

    def __str__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in sorted(self.states.items()))
        return f"{self.tasks} tasks ({states}), {self.events} transition events, {len(self.faults)} faults"


def audit(store: Store) -> Audit:
    """Replay every task's history and compare it with the task's row."""
    found = Audit()
    rows = {r[0]: r for r in store.read_sql(_TASKS)}
    seen: set[int] = set()
    for key, history in groupby(store.read_sql(_EVENTS), key=lambda r: r[0]):
        seen.add(key)
        if key in rows:
            found.faults += _replay(rows[key], list(history), found)
        else:
            found.faults.append(f"events of task {key}, which does not exist")
    found.faults += [f"task {key} has no event" for key in rows.keys() - seen]
    found.tasks = len(rows)
    found.states.update(r[2] for r in rows.values())
    versions = sum(r[3] for r in rows.values())
    if versions != found.events:
        found.faults.append(f"the versions add up to {versions}, but there are {found.events} transition events")
    return found


def _replay(row: tuple[Any, ...], history: list[tuple[Any, ...]], found: Audit) -> Iterable[str]:
    key, _, state, version, fence, owner, lease = row
    was, at, claimed = None, (0, -1), set()
    for number, (_, event_version, event_fence, type_, source, target, _) in enumerate(history, 1):
        found.events += 1
        found.types[type_] += 1
        if event_version != number:
            yield f"task {key}: event {number} has version {event_version}"
        if source != was or (source, target) not in PAIRS:
            yield f"task {key}: {type_} goes from {source} to {target} after {was}"
        now = event_fence, TASK.ranks[target]
        if now <= at:
            yield f"task {key}: {type_} moved back from {at} to {now}"
        if type_ == TASK.claim.event:
            if event_fence in claimed:
                yield f"task {key}: attempt {event_fence} was claimed twice"
            claimed.add(event_fence)
        was, at = target, now
    if (was, len(history), at[0]) != (state, version, fence):
        yield f"task {key}: the log ends in {was} v{len(history)} f{at[0]}, the row in {state} v{version} f{fence}"
    if (state in HELD) != (owner is not None and lease is not None):
        yield f"task {key} is {state} with owner {owner} and lease {lease}"


def audit_claims(claims: Iterable[Sequence[int]]) -> list[str]:
    """What the workers were told: no two of them were ever given the same attempt of the same task."""
    given = Counter((key, fence) for key, fence in claims)
    return [f"task {key}: attempt {fence} was given to {n} workers" for (key, fence), n in given.items() if n > 1]


def audit_successes(store: Store, successes: Iterable[Sequence[Any]]) -> list[str]:
    """Every success that a worker was told is there, once, in its own name."""
    logged = Counter(
        (entity, fence, actor)
        for entity, _, fence, type_, _, _, actor in store.read_sql(_EVENTS)
        if type_ == TASK.succeed.event
    )
    told = {(key, fence, f"worker:{worker}") for key, fence, worker in successes}
    return [f"{s} is acknowledged and {logged[s]} times in the log" for s in told if logged[s] != 1]


def deadlocks(url: str) -> int:
    """How many deadlocks PostgreSQL had to break in this database. Ask when all who worked there have left."""
    if not url.startswith("postgres"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        # A backend has reported its figures for certain when it has ended.
        wait_until(lambda: connection.execute(_OTHERS).fetchall()[0][0] == 0)
        return int(connection.execute(_DEADLOCKS).fetchall()[0][0])
