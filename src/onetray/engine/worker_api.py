"""What stands beside the lifecycle: progress, checkpoints, the registry of workers, breakers.

Owns the checks of what comes in past the committer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from onetray.domain.checks import MOST_ROWS, listed, seconds, task_id, text, whole
from onetray.domain.clock import SECOND
from onetray.domain.errors import NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import Holding, TaskProgress
from onetray.domain.token import READ, WORK
from onetray.domain.worker import Breaker, WorkerBeat, WorkerInfo, breaker_state, check_beat
from onetray.engine.reads import DatabaseReads, act, own_route, read
from onetray.engine.task_api import TaskApi
from onetray.redaction.answers import json_of_task, of_task, plain
from onetray.store.base import Tx
from onetray.store.shown_rows import BreakerDetails, WorkerRow

FORGOTTEN_S = 86_400
"""A worker that has been silent for so long, past its time, is not listed any more."""


class WorkerApi(DatabaseReads):
    """Workers, breakers, and what tasks report beside their lifecycle, as the database has it."""

    def __init__(self, tasks: TaskApi) -> None:
        super().__init__(tasks.store, tasks.config, tasks.must_not_have_forked)
        self._tasks = tasks

    @read(of_task)
    def progress_of(self, task: str, *, namespace: str = "default") -> TaskProgress | None:
        """How far the task has last said that it is; None when it has said nothing."""
        rows = self._read("progress_of", id=task_id(task), namespace=namespace)
        if not rows:
            self._tasks.task(task, namespace=namespace)
        return rows[0] if rows else None

    @read(json_of_task, READ, WORK)
    def last_checkpoint(self, task: str, *, namespace: str = "default") -> Any | None:
        """What an attempt of the task has kept last, this one or an earlier one; None when there is nothing."""
        rows = self._read("checkpoint_of", id=task_id(task), namespace=namespace)
        if not rows:
            self._tasks.task(task, namespace=namespace)
        return next((orjson.loads(body) for (body,) in rows), None)

    @read(plain, READ, WORK)
    def now(self) -> int:
        """What time it is by the clock that decides, in microseconds since the epoch."""
        return self.store.now()

    @read(plain, READ, WORK)
    def held(self, keys: Sequence[int], *, namespace: str = "default") -> list[Holding]:
        """How tasks stand that a worker holds, by their keys: those that are gone are left out."""
        for key in listed(keys, "keys", 0, MOST_ROWS):
            whole(key, "keys", 1, 2**63 - 1)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is None or not keys:
            return []
        return self.store.read("held_in_namespace", keys=sorted(keys), ns=ns)

    @own_route
    def worker_beat(self, beat: WorkerBeat, *, namespace: str = "default") -> None:
        """Write down what a worker says about itself, and forget those that have long been silent."""
        check_beat(beat, self.config.limits)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))

        def register(tx: Tx) -> None:
            tx.query(
                "worker_beat", ns=ns, name=beat.name, host=beat.host, pid=beat.pid, version=beat.version, at=tx.now,
                expires_at=tx.now + int(beat.ttl_s * SECOND), concurrency=beat.concurrency, at_work=beat.running,
                claimed=beat.claimed, queues=_listed(beat.queues), kinds=_listed(beat.kinds), state=beat.state,
            )  # fmt: skip
            tx.query("forget_workers", before=tx.now - FORGOTTEN_S * SECOND)

        self.store.write(register)

    @own_route
    def worker_leave(self, name: str, *, namespace: str = "default") -> None:
        """Take a worker off the list: it has stopped."""
        text(name, "name", self.config.limits.name_chars)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is not None:
            self.store.write(lambda tx: tx.query("worker_leave", ns=ns, name=name))

    @read(plain)
    def workers(self, *, namespace: str = "default", limit: int = 1000) -> list[WorkerInfo]:
        """The workers that have said something lately, the newest first."""
        rows = self._read("workers", namespace=namespace, limit=limit)
        return [_worker(row) for row in rows]

    @read(plain)
    def breakers(self, *, namespace: str = "default", limit: int = 1000) -> list[Breaker]:
        """The breakers of all kinds that have failed, or were opened by hand, since they were first counted."""
        return [_breaker(row) for row in self._read("breakers", namespace=namespace, limit=limit)]

    @act
    def open_breaker(
        self, kind: str, *, for_s: float, by: str = "anonymous", why: str = "opened by hand", namespace: str = "default"
    ) -> None:
        """Let no task of a kind be claimed for a while. Then one is tried. What runs goes on."""
        limits, names = self.config.limits, self.store.names
        ns = names.intern_namespace(text(namespace, "namespace", limits.name_chars))
        text(by, "by", limits.name_chars)
        text(why, "why", limits.reason_chars)
        seconds(for_s, "for_s", 0.001)
        key = names.intern_kind(ns, text(kind, "kind", limits.name_chars))
        self.store.write(
            lambda tx: tx.query("open_breaker", kind=key, at=tx.now, until=tx.now + int(for_s * SECOND), by=by, why=why)
        )

    @act
    def close_breaker(self, kind: str, *, namespace: str = "default") -> None:
        """Let tasks of a kind be claimed again, and forget the failures that were counted."""
        limits, names = self.config.limits, self.store.names
        text(kind, "kind", limits.name_chars)
        ns = names.namespace(text(namespace, "namespace", limits.name_chars))
        key = None if ns is None else names.kind(ns, kind)
        if key is None:
            raise NotFound(f"there is no kind {kind}", kind=kind)
        self.store.write(lambda tx: tx.query("close_breakers", kinds=[key]))


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


def _listed(names: tuple[str, ...]) -> str:
    return orjson.dumps(list(names)).decode()
