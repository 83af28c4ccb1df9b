"""The same work without an engine: what the database allows with hand-written SQL.

Owns what both databases share. A limit writes the same rows into the same tables, with the same indexes,
constraints and durability, in the same two transactions for each batch, and it checks every fence. It decides
nothing: no retries, no lease expiry, no repeated reports, no refusals.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from benchmarks.events import Happened, Moved
from onetray.store import open_store

WORKER, ACTOR, SUBMITTER = "bench", "worker:bench", "user:anonymous"
LEASE_US = 60_000_000


class Numbers(NamedTuple):
    """The keys of the names under which the limit's tasks are stored."""

    ns: int
    queue: int
    kind: int
    policy: int

    def happened(self, type_: str, was: str | None, state: str, actor: str = ACTOR) -> Happened:
        return Happened(self.ns, type_, was, state, actor)

    def submitted(self) -> Happened:
        return self.happened("task.submitted", None, "queued", SUBMITTER)

    def claimed(self) -> Happened:
        return self.happened("task.claimed", "queued", "assigned")

    def started(self) -> Happened:
        return self.happened("task.started", "assigned", "running")

    def succeeded(self) -> Happened:
        return self.happened("task.succeeded", "running", "succeeded")


Claimed = list[Any]
"""Tasks that begin with key, version, fence, attempts and time; the rest is what a worker would need."""


class Limit(Protocol):
    def submit(self, payloads: list[dict[str, int]]) -> None: ...

    def claim(self, limit: int) -> Claimed: ...

    def report(self, claimed: Claimed) -> None: ...

    def close(self) -> None: ...


def submit_by_hand(limit: Limit, batch: int, jobs: int) -> None:
    for start in range(0, jobs, batch):
        limit.submit([{"i": i} for i in range(start, min(start + batch, jobs))])


def drain_by_hand(limit: Limit, batch: int) -> None:
    """Claim and report until nothing is left: two transactions for each batch."""
    while claimed := limit.claim(batch):
        limit.report(claimed)


def after_success(claimed: Claimed, now: int) -> list[Moved]:
    """What tasks are when they have started and succeeded. Nobody else has moved them since, so nothing is read."""
    return [(key, version + 2, fence, attempts, max(now, ts)) for key, version, fence, attempts, ts, *_ in claimed]


def before_success(moved: list[Moved]) -> list[Moved]:
    """What they were when they had started."""
    return [(key, version - 1, *rest) for key, version, *rest in moved]


def prepare(url: str) -> Numbers:
    """Make the schema and the names that a limit's rows refer to."""
    store = open_store(url)
    try:
        store.migrate()
        names = store.names
        ns = names.intern_namespace("default")
        kind = names.intern_kind(ns, "noop")
        return Numbers(ns, names.intern_queue(ns, "default"), kind, names.policy_of_kind(kind, 60.0))
    finally:
        store.close()
