"""Remove old jobs for good: one step by hand, or a walk in the background that others hardly notice.

Owns what goes with a job, and how fast. What may go is the statements' to say (`prunable_jobs`, `prunable_flows`):
whole jobs that have ended long enough ago, and that no living idempotency key leads to.

Nothing is indexed by the end of a job: the index would have to be written with every one. The walk goes by key instead.
Keys rise with time, so it starts at the oldest and stops where everything is young: what is young is not read. What it
passes because it has not ended, or not long ago, is looked at again by the next round. A round that meets SPAN tasks in
a row whose times lie in the future, because a clock was wrong, ends there.

A flow goes whole, in one transaction, however many tasks it has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from onetray.domain.clock import SECOND
from onetray.store.base import Store, Tx

# Unique keys first: whoever holds one may be leading its idempotency key to the job.
_KEYS = ("unique_keys", "idempotency")
_OF_TASKS = ("dead_letters", "logs", "progress", "checkpoints", "events", "tasks")
_AT_ONCE = 10_000
_LAST_KEY = 2**62

SPAN = 1_000
"""Tasks, or flows, that a step looks at."""
STEP_S = {"sqlite": 0.02, "postgres": 0.2}
"""How long a step may take: one that took longer is followed by a smaller one. On SQLite all who write wait for it. On
PostgreSQL nobody but the feed does, and a step is a dozen round trips, which a smaller one does not spare: shrunk to
fit into 40 ms, steps on a busy machine removed a tenth of what was finished meanwhile."""
LEAST, FIRST, MOST = 50, 100, SPAN
"""Jobs that a step removes at most: as few as that, at first, as many as that."""
SHARE = 0.1
"""The share of the time that goes to the walk. It rests for the others."""
ROUND_S = 60.0
"""How long it rests after a round, or when another janitor is at it."""


class Old(NamedTuple):
    """Which jobs are meant: those that ended up to `before`, of a namespace or of all, with keys in a range."""

    before: int
    ns: int | None
    limit: int
    after: int = 0
    upto: int = _LAST_KEY


def prune(store: Store, older_than_s: float, ns: int | None, limit: int) -> list[int]:
    """Remove whole terminal jobs that ended long enough ago, with all that belongs to them."""

    def remove(tx: Tx) -> list[int]:
        old = Old(tx.now - int(older_than_s * SECOND), ns, limit)
        return prune_tasks(tx, old) + prune_flows(tx, old)

    return store.write(remove)


def prune_tasks(tx: Tx, old: Old) -> list[int]:
    keys = [key for (key,) in tx.query("prunable_jobs", now=tx.now, **old._asdict())]
    if keys:
        keys = _without_keys(tx, keys)
        _remove(tx, keys, "labels", *_OF_TASKS)
    return keys


def prune_flows(tx: Tx, old: Old, most_members: int | None = None) -> list[int]:
    """Remove whole flows; with `most_members`, no more than have so many tasks, but one at least."""
    flows = [key for (key,) in tx.query("prunable_flows", now=tx.now, **old._asdict())]
    if flows and most_members is not None:
        flows = _within(tx, flows, most_members)
    if flows:
        flows = _without_keys(tx, flows)
        stages = [key for (key,) in tx.query("stage_keys_of_flows", keys=flows)]
        members = [key for (key,) in tx.query("members_of_stages", keys=stages)]
        _remove(tx, members, "dependencies", *_OF_TASKS)
        _remove(tx, stages, "events", "stages")
        _remove(tx, flows, "labels", "contexts", "events", "flows")
    return flows


def _without_keys(tx: Tx, jobs: list[int]) -> list[int]:
    """Remove the keys that lead to these jobs. Left out are jobs of which another transaction holds a key.

    To wait for it would end in a deadlock now and then: it may want another key of these.
    """
    keyed = []
    for table in _KEYS:
        held = Counter(job for (job,) in tx.query(f"jobs_of_{table}", keys=jobs))
        if held:
            keyed.append(table)
            held.subtract(job for (job,) in tx.query(f"lock_jobs_of_{table}", keys=sorted(held)))
            jobs = [job for job in jobs if held[job] <= 0]
    _remove(tx, jobs, *keyed)
    return jobs


def _within(tx: Tx, flows: list[int], most_members: int) -> list[int]:
    sizes: dict[int, int] = dict(tx.query("sizes_of_flows", keys=flows))
    room = most_members
    for i, flow in enumerate(flows):
        room -= sizes.get(flow, 0)
        if room < 0:
            return flows[: max(i, 1)]
    return flows


def _remove(tx: Tx, keys: list[int], *tables: str) -> None:
    """Remove these entities, or what belongs to them, from each table."""
    for i in range(0, len(keys), _AT_ONCE):
        for table in tables:
            tx.query(f"prune_{table}", keys=keys[i : i + _AT_ONCE])


class Retention:
    """The walk: first among tasks, then among flows. Each step is followed by a rest that is longer than itself."""

    def __init__(self, store: Store, keep_s: float, namespace: Callable[[], int | None] | None = None) -> None:
        self._store, self._keep_us, self._namespace = store, int(keep_s * SECOND), namespace
        self._round_s = min(ROUND_S, max(1.0, keep_s / 10))
        self._among, self._after, self._limit = "tasks", 0, FIRST
        self.rest_s = 0.0
        """How long to wait before the next step."""

    def step(self) -> int | None:
        """Remove some of what is old, or look at what comes next. Answers how many jobs are gone.

        None at the end of a round, and when another janitor is at it.
        """
        self.rest_s = self._round_s
        began = time.monotonic()
        removed = self._look()
        if removed is None:
            return None
        self.rest_s = (time.monotonic() - began) * (1 - SHARE) / SHARE
        return len(removed)

    def _look(self) -> list[int] | None:
        """The jobs that were removed; None when there is nothing to do before the next round."""
        ns = None
        if self._namespace is not None and (ns := self._namespace()) is None:
            return None
        before = self._store.now() - self._keep_us
        ((upto, oldest),) = self._store.read(f"next_{self._among}", after=self._after, span=SPAN)
        if upto is None or oldest > before:
            return self._next_walk()
        after, self._after = self._after, upto  # Also when it breaks: what cannot be removed must not hold up the rest.
        removed = self._remove(Old(before, ns, self._limit, after, upto))
        if removed:
            self._after = removed[-1]
        return removed

    def _next_walk(self) -> list[int] | None:
        self._among, self._after = ("flows", 0) if self._among == "tasks" else ("tasks", 0)
        return [] if self._among == "flows" else None

    def _remove(self, old: Old) -> list[int] | None:
        """None when another janitor is at it: one is enough for a database."""
        began = 0.0

        def remove(tx: Tx) -> list[int] | None:
            nonlocal began
            # From here: the wait for the right to write is no reason for smaller steps.
            began = time.monotonic()
            ((mine,),) = tx.query("turn_to_prune")
            if not mine:
                return None
            return prune_tasks(tx, old) if self._among == "tasks" else prune_flows(tx, old, old.limit)

        removed = self._store.write(remove, again=False)
        if removed is not None:
            self._fit(time.monotonic() - began, full=len(removed) == old.limit)
        return removed

    def _fit(self, took_s: float, full: bool) -> None:
        step_s = STEP_S[self._store.dialect]
        if took_s > step_s:
            self._limit = max(LEAST, self._limit // 2)
        elif full and took_s < step_s / 2:
            self._limit = min(MOST, self._limit * 2)
