"""Reads and acts about workers and breakers, and reads of progress and checkpoints.

These writes do not go through the committer; their arguments are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from onetray.domain.checks import MAX_ROWS, listed, optional_text, seconds, task_id, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import NotFound
from onetray.domain.machine import USER
from onetray.domain.policy import Policy
from onetray.domain.task import Holding, TaskProgress
from onetray.domain.token import READ, WORK
from onetray.domain.worker import Breaker, WorkerBeat, WorkerInfo, breaker_state, check_beat
from onetray.engine.breakers import close_breakers, record_opened
from onetray.engine.pending_writes import actor
from onetray.engine.reads import DatabaseReads, act, own_route, read
from onetray.engine.tally import Tally
from onetray.engine.task_api import TaskApi
from onetray.redaction.answers import json_of_task, of_task, plain
from onetray.store.base import Tx
from onetray.store.shown_rows import BreakerDetails, WorkerRow

KEEP_REGISTRATION_S = 86_400
"""How long after its expiry the registration of a worker is kept."""


class WorkerApi(DatabaseReads):
    """The engine's methods about workers, breakers, progress and checkpoints, on a database."""

    def __init__(self, tasks: TaskApi, tally: Tally) -> None:
        super().__init__(tasks.store, tasks.config, tasks.must_not_have_forked)
        self._tasks, self._tally = tasks, tally

    @read(of_task)
    def progress_of(self, task: str, *, namespace: str = "default") -> TaskProgress | None:
        """The last reported progress of a task; None if it has reported none."""
        rows = self._read("progress_of", id=task_id(task), namespace=namespace)
        if not rows:
            self._tasks.task(task, namespace=namespace)
        return rows[0] if rows else None

    @read(json_of_task, READ, WORK)
    def last_checkpoint(self, task: str, *, namespace: str = "default") -> Any | None:
        """The last checkpoint of a task, of this attempt or an earlier one; None if there is none."""
        rows = self._read("checkpoint_of", id=task_id(task), namespace=namespace)
        if not rows:
            self._tasks.task(task, namespace=namespace)
        return next((orjson.loads(body) for (body,) in rows), None)

    @read(plain, READ, WORK)
    def now(self) -> int:
        """The database's time, by which leases expire, in microseconds since the epoch."""
        return self.store.now()

    @read(plain, READ, WORK)
    def held(self, keys: Sequence[int], *, namespace: str = "default") -> list[Holding]:
        """The state of tasks that a worker holds, by their keys, without those that no longer exist."""
        for key in listed(keys, "keys", 0, MAX_ROWS):
            whole(key, "keys", 1, 2**63 - 1)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is None or not keys:
            return []
        return self.store.read("held_in_namespace", keys=sorted(keys), ns=ns)

    @own_route
    def worker_beat(self, beat: WorkerBeat, *, namespace: str = "default") -> None:
        """Register a worker or renew its registration, and delete long expired ones."""
        check_beat(beat, self.config.limits)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))

        def register(tx: Tx) -> None:
            tx.query(
                "worker_beat", ns=ns, name=beat.name, host=beat.host, pid=beat.pid, version=beat.version, at=tx.now,
                expires_at=tx.now + int(beat.ttl_s * SECOND), concurrency=beat.concurrency, at_work=beat.running,
                claimed=beat.claimed, queues=_names_json(beat.queues), kinds=_names_json(beat.kinds), state=beat.state,
            )  # fmt: skip
            tx.query("delete_expired_workers", before=tx.now - KEEP_REGISTRATION_S * SECOND)

        self.store.write(register)
        self._tally.write()

    @own_route
    def worker_leave(self, name: str, *, namespace: str = "default") -> None:
        """Record that a worker has stopped. It is no longer listed."""
        text(name, "name", self.config.limits.name_chars)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is not None:
            self.store.write(lambda tx: tx.query("worker_leave", ns=ns, name=name, at=tx.now))

    @read(plain)
    def workers(self, *, namespace: str = "default", limit: int = 1000) -> list[WorkerInfo]:
        """The registered workers, newest first."""
        rows = self._read("workers", namespace=namespace, limit=limit)
        return [_worker(row) for row in rows]

    @read(plain)
    def breakers(self, *, namespace: str = "default", limit: int = 1000) -> list[Breaker]:
        """The breakers of all kinds that have failed or whose breaker was opened by hand."""
        return [_breaker(row) for row in self._read("breakers", namespace=namespace, limit=limit)]

    @act
    def open_breaker(
        self, kind: str, *, for_s: float, by: str = "anonymous", why: str = "opened by hand", namespace: str = "default"
    ) -> None:
        """Stop claims of a kind for a while, then try one task. Claimed tasks go on.

        The event `breaker.opened` records it.
        """
        limits, names = self.config.limits, self.store.names
        ns = names.intern_namespace(text(namespace, "namespace", limits.name_chars))
        text(by, "by", limits.name_chars)
        text(why, "why", limits.reason_chars)
        seconds(for_s, "for_s", 0.001)
        key = names.intern_kind(ns, text(kind, "kind", limits.name_chars))
        tried_at: list[int] = []

        def open_(tx: Tx) -> None:
            if tried_at and tx.query("breaker_opened", kind=key, since=tried_at[0], by=by, why=why):
                return
            tried_at.append(tx.now)
            until = tx.now + int(for_s * SECOND)
            tx.query("open_breaker", kind=key, at=tx.now, until=until, by=by, why=why)
            record_opened(tx, key, actor(USER, by), why, until)

        self.store.write(open_)

    @act
    def close_breaker(
        self, kind: str, *, reason: str | None = None, by: str = "anonymous", namespace: str = "default"
    ) -> None:
        """Allow claims of a kind again, and reset its counted failures. The event `breaker.closed` records it."""
        limits, names = self.config.limits, self.store.names
        text(by, "by", limits.name_chars)
        optional_text(reason, "reason", limits.reason_chars)
        text(kind, "kind", limits.name_chars)
        ns = names.namespace(text(namespace, "namespace", limits.name_chars))
        key = None if ns is None else names.kind(ns, kind)
        if key is None:
            raise NotFound(f"there is no kind {kind}", kind=kind)
        self.store.write(lambda tx: close_breakers(tx, [key], actor(USER, by), reason))


def _worker(row: WorkerRow) -> WorkerInfo:
    fields = row._asdict()
    alive = row.expires_at > fields.pop("seen_at")
    queues, kinds = (tuple(orjson.loads(names)) for names in (row.queues, row.kinds))
    return WorkerInfo(**fields | {"queues": queues, "kinds": kinds, "alive": alive})


def _breaker(row: BreakerDetails) -> Breaker:
    since = row.seen_at - int(Policy.from_body(row.policy).breaker_window_s * SECOND)
    failures = sum(at >= since for at in orjson.loads(row.recent))
    state = breaker_state(row.open_until, row.probing, row.seen_at)
    return Breaker(row.kind, state, failures, row.opened_at, row.open_until, row.why, row.opened_by)


def _names_json(names: tuple[str, ...]) -> str:
    return orjson.dumps(list(names)).decode()
