"""Upkeep of one namespace: return tasks whose leases have expired, delete ended jobs. Both answer ids.

The janitor and the retention do the same for all namespaces, by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onetray.domain.checks import FAR_US, MAX_ROWS, choice, listed, optional_text, text, whole
from onetray.domain.errors import Conflict, NotFound
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.token import ADMIN, OPERATE, WORK
from onetray.engine import janitor
from onetray.engine.deletion import Deletion
from onetray.engine.reads import DatabaseReads, act, act_for
from onetray.engine.retention import OldJobs, prune_deletions
from onetray.store.base import Tx

ENDED = tuple(dict.fromkeys(s for machine in (TASK, FLOW) for s in machine.states if s in machine.terminal))
SCAN = 20_000
"""How many tasks or flows one read scans for ended ones."""
STEP = 100
"""How many jobs one transaction deletes."""


class UpkeepApi(DatabaseReads):
    """The engine's acts of upkeep, on a database."""

    def __init__(self, *reads: Any, new_batch: janitor.NewBatch) -> None:
        super().__init__(*reads)
        self._new_batch = new_batch

    def _namespace(self, namespace: str) -> int | None:
        self.must_not_have_forked()
        return self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))

    @act_for(WORK, OPERATE, now=ADMIN)
    def expire_tasks(
        self, *, now: int | None = None, limit: int = janitor.BATCH, namespace: str = "default"
    ) -> list[str]:
        """Return tasks of a namespace whose leases have expired to their queues, or end them. Answers their ids.

        The janitor does this by itself. `now`, which may be in the future, needs the scope `admin`.
        """
        whole(limit, "limit", 1, MAX_ROWS)
        if now is not None:
            whole(now, "now", 0, FAR_US)
        ns, keys = self._namespace(namespace), list[int]()
        while ns is not None and len(keys) < limit:
            expired = janitor.expire_leases(self.store, self._new_batch, now, limit - len(keys), ns)
            if not expired:
                break
            keys += expired
        ids: dict[int, str] = dict(self.store.read("ids_of_tasks", keys=keys)) if keys else {}
        return [ids[key] for key in keys if key in ids]

    @act
    def prune_jobs(
        self,
        *,
        ended_before: int,
        states: Sequence[str] = (),
        entity: str | None = None,
        kind: str | None = None,
        limit: int = 500,
        reason: str | None = None,
        by: str = "anonymous",
        namespace: str = "default",
    ) -> list[str]:
        """Delete jobs that ended before a time, flows first, oldest first. Answers their ids.

        `kind`: only tasks of this kind and flows of this name.
        An event `job.deleted` records each. Jobs stay to which an idempotency key still points, and flows of which a
        task or the compensation has not ended.
        """
        whole(ended_before, "ended_before", 0, FAR_US)
        whole(limit, "limit", 1, MAX_ROWS)
        for state in listed(states, "states", 0, len(ENDED)):
            choice(state, "states", ENDED)
        text(by, "by", self.config.limits.name_chars)
        optional_text(reason, "reason", self.config.limits.reason_chars)
        optional_text(kind, "kind", self.config.limits.name_chars)
        tables = {FLOW.entity: "flows", TASK.entity: "tasks"}
        if entity is not None:
            tables = {entity: tables[choice(entity, "entity", tuple(tables))]}
        ns, ids = self._namespace(namespace), list[str]()
        if ns is None:
            return []
        kind_key = None if kind is None else self.store.names.kind(ns, kind)
        if kind is not None and kind_key is None:
            return []
        if not states and kind is None:
            self.store.write(lambda tx: prune_deletions(tx, OldJobs(ended_before, ns, limit)))
        for table in tables.values():
            for found in self._ended(table, ns, ended_before, states, kind_key):
                ids += self._delete(found[: limit - len(ids)], ns, by, reason)
                if len(ids) == limit:
                    return ids
        return ids

    def _ended(self, table: str, ns: int, before: int, states: Sequence[str], kind: int | None) -> Iterator[list[str]]:
        """Ids of ended jobs, oldest first, in parts. No index covers the end of a job: the scan goes by key."""
        after = 0
        filters = {
            "before": before, "ns": ns, "states": list(states), "any_state": int(not states), "kind": kind,
            "limit": STEP,
        }  # fmt: skip
        while True:
            ((end, oldest),) = self.store.read(f"next_{table}", after=after, span=SCAN)
            if end is None or oldest >= before:
                return
            while after < end:
                rows = self.store.read(f"ended_{table}", after=after, upto=end, now=self.store.now(), **filters)
                last = max((key for key, _ in rows), default=end)
                after = last if len(rows) == STEP else end
                yield [id_ for _, id_ in rows]

    def _delete(self, ids: list[str], ns: int, by: str, reason: str | None) -> list[str]:
        """Delete jobs in one transaction; of a large flow the first step. Returns the ids of those that are gone."""

        def delete(tx: Tx) -> list[tuple[str, Deletion, bool]]:
            done = []
            for id_ in ids:
                deletion = Deletion(id_, ns, by, reason)
                try:
                    done.append((id_, deletion, deletion.step(tx)))
                except (Conflict, NotFound):
                    continue  # Nothing of it was written: it is in use, or somebody else has deleted it.
            return done

        deleted = self.store.write(delete) if ids else []
        for _, deletion, is_done in deleted:
            deletion.run(self.store, is_done)
        return [id_ for id_, _, _ in deleted]
