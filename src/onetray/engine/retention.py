"""Delete old jobs: with `engine.prune`, or by a background scan at low cost.

Owns which rows are deleted with a job, and how fast. The statements `prunable_jobs` and `prunable_flows` select whole
jobs that ended long enough ago and that no valid idempotency key points to.

No index covers the end of a job: every job would have to write it. The scan goes by key instead. Keys increase with
time, so it starts at the oldest and stops where all jobs are recent. The next round scans again the jobs that it has
left. A round ends early at SPAN tasks in a row with times in the future, which a wrong clock has written.

A flow is deleted in one transaction, however many tasks it has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onetray.domain.clock import SECOND
from onetray.domain.lifecycle import AUDIT_TYPES
from onetray.engine.unused_kinds import UnusedKinds
from onetray.engine.unused_lanes import UnusedLanes
from onetray.store.base import Store, Tx
from onetray.store.event_log import without
from onetray.store.event_rows import EventBatch

# Windows and unique keys first: a submit that holds one may be pointing its idempotency key to the job.
_KEY_TABLES = ("submit_windows", "unique_keys", "idempotency")
TASK_TABLES = ("aliases", "dead_letters", "logs", "progress", "checkpoints", "tasks")
_DELETE_STEP = 10_000
JOB_DELETED = "job.deleted"
OF_NO_JOB = (JOB_DELETED, *AUDIT_TYPES)
"""The types of notes that belong to no job."""
_LAST_KEY = 2**62
_NEXT_TABLE = {"tasks": "flows", "flows": "deletions", "deletions": "kinds", "kinds": "lanes", "lanes": "tasks"}

SPAN = 1_000
"""How many tasks or flows a step scans."""
STEP_S = {"sqlite": 0.02, "postgres": 0.2}
"""The target duration of a step: after a longer one the next is smaller. On SQLite all writers wait for a step. On
PostgreSQL only the feed does, and a step is a dozen round trips, which a smaller one does not save: with steps of
40 ms, a busy machine deleted a tenth of the jobs that ended meanwhile."""
MIN_LIMIT, FIRST_LIMIT, MAX_LIMIT = 50, 100, SPAN
"""The limit of jobs that a step deletes: its minimum, its first value, its maximum."""
SHARE = 0.1
"""The share of the time that the scan may use."""
ROUND_S = 60.0
"""The pause after a round, or while another janitor deletes."""


class OldJobs(NamedTuple):
    """Selects jobs that ended up to `before`, of a namespace or of all, with keys in a range."""

    before: int
    ns: int | None
    limit: int
    after: int = 0
    upto: int = _LAST_KEY


def prune(store: Store, older_than_s: float, ns: int | None, limit: int) -> list[int]:
    def remove(tx: Tx) -> list[int]:
        old = OldJobs(tx.now - int(older_than_s * SECOND), ns, limit)
        prune_deletions(tx, old)
        return prune_tasks(tx, old) + prune_flows(tx, old)

    return store.write(remove)


def prune_tasks(tx: Tx, old: OldJobs) -> list[int]:
    keys = [key for (key,) in tx.query("prunable_jobs", now=tx.now, **old._asdict())]
    if keys:
        keys = delete_keys(tx, keys)
        remove_events(tx, keys)
        remove_rows(tx, keys, "labels", *TASK_TABLES)
    return keys


def prune_flows(tx: Tx, old: OldJobs, max_members: int | None = None) -> list[int]:
    """Delete whole flows; with `max_members`, only as many as have that many tasks together, but at least one."""
    flows = [key for (key,) in tx.query("prunable_flows", now=tx.now, **old._asdict())]
    if flows and max_members is not None:
        flows = _limit_members(tx, flows, max_members)
    if flows:
        flows = delete_keys(tx, flows)
        stages = [key for (key,) in tx.query("stage_keys_of_flows", keys=flows)]
        members = [key for (key,) in tx.query("members_of_stages", keys=stages)]
        remove_events(tx, members + stages + flows)
        remove_rows(tx, members, "dependencies", *TASK_TABLES)
        remove_rows(tx, stages, "stages")
        remove_rows(tx, flows, "flow_events", "labels", "aliases", "aliases_of_contexts", "contexts", "flows")
    return flows


def prune_deletions(tx: Tx, old: OldJobs) -> list[int]:
    """Delete the notes about deleted jobs, queues, breakers and tokens, which belong to no job. Returns their ids."""
    ids: list[int] = []
    # Type by type: so the index has them in the order of their times.
    for type_ in OF_NO_JOB:
        if len(ids) < old.limit:
            found = {"before": old.before, "ns": old.ns, "limit": old.limit - len(ids)}
            ids += [id_ for (id_,) in tx.query("prune_deletions", type=type_, **found)]
    return ids


def delete_keys(tx: Tx, jobs: list[int]) -> list[int]:
    """Delete the keys of these jobs. Returns the jobs without those of which another transaction has locked a key.

    Waiting for that lock could deadlock: the other transaction may want another of these keys.
    """
    keyed = []
    for table in _KEY_TABLES:
        held = Counter(job for (job,) in tx.query(f"jobs_of_{table}", keys=jobs))
        if held:
            keyed.append(table)
            held.subtract(job for (job,) in tx.query(f"lock_jobs_of_{table}", keys=sorted(held)))
            jobs = [job for job in jobs if held[job] <= 0]
    remove_rows(tx, jobs, *keyed)
    return jobs


def _limit_members(tx: Tx, flows: list[int], max_members: int) -> list[int]:
    sizes: dict[int, int] = dict(tx.query("sizes_of_flows", keys=flows))
    left = max_members
    for i, flow in enumerate(flows):
        left -= sizes.get(flow, 0)
        if left < 0:
            return flows[: max(i, 1)]
    return flows


def remove_events(tx: Tx, entities: list[int]) -> None:
    """Take the events of these entities out of the log, before their rows go."""
    removed_at = 0
    for i in range(0, len(entities), _DELETE_STEP):
        keys = entities[i : i + _DELETE_STEP]
        events = [int(id_) for _, ids in tx.query("events_of_entities", keys=keys) for id_ in ids.split(",") if id_]
        batches: list[EventBatch] = tx.query("lock_batches_of_events", events=sorted(events)) if events else []
        removed = set(keys)
        left = {batch.id: without(batch, removed) for batch in batches}
        changed = {id_: varied for id_, varied in left.items() if varied is not None}
        if changed:
            tx.batch("remove_entries", {"key": list(changed), "varied": list(changed.values())})
        tx.query("delete_batches", keys=[id_ for id_, varied in left.items() if varied is None])
        tx.query("prune_event_pages", keys=keys)
        tx.query("prune_notes_of", keys=keys)
        removed_at = max([removed_at, *(batch.ts for batch in batches)])
    # Last, for all of them: deletions wait for each other here.
    tx.query("note_removed", at=removed_at)


def remove_rows(tx: Tx, keys: list[int], *tables: str) -> None:
    """Delete the rows of these entities from each table."""
    for i in range(0, len(keys), _DELETE_STEP):
        for table in tables:
            tx.query(f"prune_{table}", keys=keys[i : i + _DELETE_STEP])


class OldNotes:
    """Deletes notes of some types after their TTL: at most MAX_LIMIT in one transaction."""

    def __init__(self, store: Store, types: Sequence[str], ttl_s: float) -> None:
        self._store, self._types, self._ttl_us = store, list(types), int(ttl_s * SECOND)
        self._round_s, self._next_at = min(ROUND_S, max(1.0, ttl_s / 10)), float("-inf")

    def step(self) -> int:
        """Delete some, unless the last round has found too few. Returns how many."""
        if not self._types or time.monotonic() < self._next_at:
            return 0
        removed = self.remove()
        if removed < MAX_LIMIT:
            self._next_at = time.monotonic() + self._round_s
        return removed

    def remove(self) -> int:
        return self._store.write(self._remove)

    def _remove(self, tx: Tx) -> int:
        notes = tx.query("prune_notes", types=self._types, before=tx.now - self._ttl_us, limit=MAX_LIMIT)
        if notes:
            # Those of single tasks have none.
            tx.batch("prune_flow_events_by_id", {"job": [job for job, _ in notes], "key": [id_ for _, id_ in notes]})
        return len(notes)


class Retention:
    """The background scan: tasks, then flows, then notes that belong to no job, then kinds and lanes that nothing
    uses.

    After each step it pauses for longer than the step took.
    """

    def __init__(self, store: Store, keep_s: float, namespace: Callable[[], int | None] | None = None) -> None:
        self._store, self._keep_us, self._namespace = store, int(keep_s * SECOND), namespace
        self._round_s = min(ROUND_S, max(1.0, keep_s / 10))
        self._table, self._after, self._limit = "tasks", 0, FIRST_LIMIT
        self._unused: dict[str, UnusedKinds | UnusedLanes] = {"kinds": UnusedKinds(store), "lanes": UnusedLanes(store)}
        self.rest_s = 0.0
        """How long to wait before the next step."""

    def step(self) -> int | None:
        """Scan the next span and delete old jobs. Returns how many.

        Returns None at the end of a round, and while another janitor deletes.
        """
        self.rest_s = self._round_s
        began = time.monotonic()
        removed = self._scan()
        if removed is None:
            return None
        self.rest_s = (time.monotonic() - began) * (1 - SHARE) / SHARE
        return len(removed)

    def _scan(self) -> list[int] | None:
        """Returns the deleted jobs; None when there is nothing to do before the next round."""
        ns = None
        if self._namespace is not None and (ns := self._namespace()) is None:
            return None
        before = self._store.now() - self._keep_us
        if self._table in self._unused:
            return self._scan_unused(self._unused[self._table], ns)
        if self._table == "deletions":
            notes = self._remove(OldJobs(before, ns, self._limit))
            return [] if notes else self._next_table()
        ((upto, oldest),) = self._store.read(f"next_{self._table}", after=self._after, span=SPAN)
        if upto is None or oldest > before:
            return self._next_table()
        after, self._after = self._after, upto  # Even if deleting fails: one bad job must not stop the scan.
        removed = self._remove(OldJobs(before, ns, self._limit, after, upto))
        if removed:
            self._after = removed[-1]
        return removed

    def _scan_unused(self, unused: UnusedKinds | UnusedLanes, ns: int | None) -> list[int] | None:
        if not unused.step(ns):
            return self._next_table()
        return self._remove(OldJobs(0, ns, self._limit)) if unused.found else []

    def _next_table(self) -> list[int] | None:
        """Go on with the next table. Returns None at the end of the round."""
        self._table, self._after = _NEXT_TABLE[self._table], 0
        return None if self._table == "tasks" else []

    def _remove(self, old: OldJobs) -> list[int] | None:
        """Returns None while another janitor deletes: one is enough for a database."""
        began = 0.0

        def remove(tx: Tx) -> list[int] | None:
            nonlocal began
            # Without the wait for the write lock, which is no reason for smaller steps.
            began = time.monotonic()
            ((is_our_turn,),) = tx.query("turn_to_prune")
            if not is_our_turn:
                return None
            if self._table in self._unused:
                self._unused[self._table].remove(tx)
                return []
            if self._table == "deletions":
                return prune_deletions(tx, old)
            return prune_tasks(tx, old) if self._table == "tasks" else prune_flows(tx, old, old.limit)

        removed = self._store.write(remove, again=False)
        if removed is not None:
            self._adapt_limit(time.monotonic() - began, full=len(removed) == old.limit)
        return removed

    def _adapt_limit(self, took_s: float, full: bool) -> None:
        step_s = STEP_S[self._store.dialect]
        if took_s > step_s:
            self._limit = max(MIN_LIMIT, self._limit // 2)
        elif full and took_s < step_s / 2:
            self._limit = min(MAX_LIMIT, self._limit * 2)
