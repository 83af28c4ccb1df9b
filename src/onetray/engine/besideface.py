"""The engine's verbs and reads beside the lifecycle: progress, checkpoints, the registry of workers.

Owns nothing but their names, and the checks of what comes in past the committer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from onetray import commands as c
from onetray.clock import SECOND
from onetray.engine.flowface import made
from onetray.fields import task_id, text
from onetray.fleet import WorkerBeat, WorkerInfo, check_beat
from onetray.model import Assignment, Receipt, TaskProgress

if TYPE_CHECKING:
    from onetray.config import EngineConfig
    from onetray.model import Task
    from onetray.store.base import Rows, Store

FORGOTTEN_S = 86_400
"""A worker that has been silent for so long, past its time, is not listed any more."""


class BesideVerbs:
    """The part of the engine that is about what is no transition."""

    store: Store
    config: EngineConfig

    if TYPE_CHECKING:

        def call(self, command: c.Command) -> Any: ...

        def task(self, task: str, *, namespace: str = "default") -> Task: ...

        def _read(self, name: str, **params: Any) -> Rows: ...

    def say_progress(
        self,
        task: Assignment | int | str,
        done: float,
        total: float | None = None,
        message: str | None = None,
        **fields: Any,
    ) -> Receipt:
        """Say how far a task is that the caller holds."""
        given = {**ticket_of(task, fields), "done": done, "total": total, "message": message}
        return receipt(self.call(c.Progress(**given)), task)

    def progress_of(self, task: str, *, namespace: str = "default") -> TaskProgress | None:
        """How far the task has last said that it is; None when it has said nothing."""
        rows = self._read("progress_of", id=task_id(task), namespace=namespace)
        if not rows:
            self.task(task, namespace=namespace)
        return TaskProgress(*rows[0]) if rows else None

    def checkpoint(self, task: Assignment | int | str, body: Any, **fields: Any) -> Receipt:
        """Keep something for the next attempt of a task that the caller holds."""
        return receipt(self.call(c.Checkpoint(body=body, **ticket_of(task, fields))), task)

    def last_checkpoint(self, task: str, *, namespace: str = "default") -> Any | None:
        """What an attempt of the task has kept last, this one or an earlier one; None when there is nothing."""
        rows = self._read("checkpoint_of", id=task_id(task), namespace=namespace)
        if not rows:
            self.task(task, namespace=namespace)
        return orjson.loads(rows[0][0]) if rows else None

    def worker_beat(self, beat: WorkerBeat, *, namespace: str = "default") -> None:
        """Write down what a worker says about itself, and forget those that have long been silent."""
        check_beat(beat, self.config.limits)
        ns = self.store.names.intern_namespace(text(namespace, "namespace", self.config.limits.name_chars))
        with self.store.transaction() as tx:
            tx.query(
                "worker_beat", ns=ns, name=beat.name, host=beat.host, pid=beat.pid, version=beat.version, at=tx.now,
                expires_at=tx.now + int(beat.ttl_s * SECOND), concurrency=beat.concurrency, at_work=beat.running,
                claimed=beat.claimed, queues=_listed(beat.queues), kinds=_listed(beat.kinds), state=beat.state,
            )  # fmt: skip
            tx.query("forget_workers", before=tx.now - FORGOTTEN_S * SECOND)

    def worker_leave(self, name: str, *, namespace: str = "default") -> None:
        """Take a worker off the list: it has stopped."""
        text(name, "name", self.config.limits.name_chars)
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is not None:
            with self.store.transaction() as tx:
                tx.query("worker_leave", ns=ns, name=name)

    def workers(self, *, namespace: str = "default", limit: int = 1000) -> list[WorkerInfo]:
        """The workers that have said something lately, the newest first."""
        rows = self._read("workers", namespace=namespace, limit=limit)
        return [
            made(WorkerInfo, [*r[:10], *(tuple(orjson.loads(names)) for names in r[10:12]), r[12], r[6] > r[13]])
            for r in rows
        ]


def _listed(names: tuple[str, ...]) -> str:
    return orjson.dumps(list(names)).decode()


def ticket_of(task: Assignment | int | str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**(c.ticket(task) if isinstance(task, Assignment) else {"task": task}), **fields}


def receipt(value: Any, task: Assignment | int | str | None = None) -> Receipt:
    """The receipt of one call. It names the task, where the caller did so by its id or by what it claimed."""
    assert isinstance(value, Receipt)
    if value.id is not None or task is None or isinstance(task, int):
        return value
    return value._replace(id=task.id if isinstance(task, Assignment) else task.lower())
