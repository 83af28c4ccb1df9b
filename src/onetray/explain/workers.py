"""Explain that no worker claims a task: none is alive, none claims from its queue, or none knows its kind.

Workers register what they claim, and renew that. Whoever claims without a registration, over HTTP or MCP, is found only
by its last claims: so these reasons say that nobody is registered, not that nobody will come. Reads only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from onetray.domain.clock import SECOND, duration
from onetray.domain.lifecycle import TASK
from onetray.domain.task import Blocker
from onetray.domain.worker import ACTIVE
from onetray.store.base import Store
from onetray.store.explain_rows import WorkerSortRow

NO_WORKER, NOT_IN_NAMESPACE = "no_worker", "no_worker_in_namespace"
NOT_ON_QUEUE, NOT_FOR_KIND = "no_worker_on_queue", "no_worker_for_kind"
CODES = frozenset({NO_WORKER, NOT_IN_NAMESPACE, NOT_ON_QUEUE, NOT_FOR_KIND})
"""The reasons that keep no claim from returning the task, if somebody makes one."""
LATELY_S = 3_600
"""How long after its last claim an unregistered worker is mentioned."""
SCANNED_CLAIMS = 100
"""Among how many of the last claims of all queues it is looked for."""
MAX_SORTS = 1_000
"""How many different sorts of workers are read."""


class Sort(NamedTuple):
    """Workers with the same queues and kinds."""

    queues: frozenset[str]
    kinds: frozenset[str]
    """Empty: every kind."""
    row: WorkerSortRow

    @property
    def claims(self) -> bool:
        """Whether they claim. A worker that stops only finishes what it holds."""
        return bool(self.row.alive) and self.row.state == ACTIVE

    def knows(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds


class Missing(NamedTuple):
    """A worker that nobody has started."""

    code: str
    problem: str
    next_step: str
    facts: dict[str, Any]


class RegisteredWorkers:
    """The registered workers of a namespace, read once, for any number of tasks."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        rows = store.read("workers_by_sort", namespace=namespace, limit=MAX_SORTS)
        self._sorts = [Sort(_queue_names(row.queues), frozenset(orjson.loads(row.kinds)), row) for row in rows]
        self._active = [sort for sort in self._sorts if sort.claims]

    @property
    def alive(self) -> int:
        """How many workers of the namespace are alive."""
        return sum(sort.row.workers for sort in self._sorts if sort.row.alive)

    def claiming_from(self, queue: str) -> int:
        """How many live workers claim from a queue."""
        return sum(sort.row.workers for sort in self._active if queue in sort.queues)

    def all_missing(self, limit: int) -> Iterator[tuple[str, str, Missing]]:
        """The workers that are missing for ready tasks, with the queue and the kind of these.

        One for a queue, or one for each kind that no worker of the queue knows.
        """
        reported: set[str] = set()
        for queue, kind in self._store.read("ready_kinds", namespace=self._namespace, limit=limit):
            if queue in reported or (missing := self.missing(queue, kind)) is None:
                continue
            if missing.code != NOT_FOR_KIND:
                reported.add(queue)
            yield queue, kind, missing

    def blockers(self, queue: str, kind: str, **facts: Any) -> list[Blocker]:
        """Why no registered worker claims a task of this kind from this queue. At most one reason."""
        missing = self.missing(queue, kind)
        if missing is None:
            return []
        return [Blocker(missing.code, f"{missing.problem}: {missing.next_step}", facts={**facts, **missing.facts})]

    def missing(self, queue: str, kind: str) -> Missing | None:
        """The worker that is missing for tasks of this kind in this queue; None if there is one."""
        on_queue = [sort for sort in self._active if queue in sort.queues]
        if any(sort.knows(kind) for sort in on_queue):
            return None
        if on_queue:
            code = NOT_FOR_KIND
            problem = f"{_counted(on_queue)} from queue {queue!r}, but none of them knows the kind {kind!r}"
        elif self._active:
            code, problem = NOT_ON_QUEUE, f"no registered worker claims from queue {queue!r}"
        elif self._any_elsewhere():
            code = NOT_IN_NAMESPACE
            problem = f"no worker of the namespace {self._namespace!r} is alive; others are, in other namespaces"
        else:
            code, problem = NO_WORKER, "no worker is alive"
        facts = {"queue": queue, "kind": kind, "command": _command(queue)}
        claim = self._unregistered_claim(queue)
        if claim is None:
            problem += self._last_seen(queue)
        else:
            worker, ago = claim
            facts["unregistered"] = worker
            problem += (
                f"; {worker!r}, which is not registered now, claimed from this queue {ago} ago and may do so again"
            )
        return Missing(code, problem, self._next_step(code, queue), facts)

    def _any_elsewhere(self) -> bool:
        return bool(self._store.read("any_worker_alive", running=ACTIVE))

    def _unregistered_claim(self, queue: str) -> tuple[str, str] | None:
        """Who has claimed from the queue lately without being registered, and how long ago."""
        now = self._store.now()
        rows = self._store.read(
            "unregistered_claims", claimed=TASK.claim.event, since=now - LATELY_S * SECOND, scan=SCANNED_CLAIMS,
            namespace=self._namespace, queue=queue,
        )  # fmt: skip
        return (rows[0].worker, duration(max(now - rows[0].at, 0))) if rows else None

    def _last_seen(self, queue: str) -> str:
        """What became of the workers that claimed from this queue."""
        for sort in self._sorts:
            if queue in sort.queues and not sort.claims:
                if sort.row.alive:
                    return f"; worker {sort.row.name!r} is stopping and claims nothing more"
                silent = duration(sort.row.seen_at - sort.row.beat_at)
                return f"; worker {sort.row.name!r} has not been seen for {silent}"
        return ""

    def _next_step(self, code: str, queue: str) -> str:
        if code == NOT_FOR_KIND:
            which = "start one whose app has it"
        elif code == NOT_ON_QUEUE or self._namespace == "default":
            which = "start one"
        else:
            which = f"start one whose app has the namespace {self._namespace!r}"
        return f"{which}, `{_command(queue)}`"


def _command(queue: str) -> str:
    return f"onetray worker --app MODULE:APP --queues {shlex.quote(queue)}"


def _queue_names(queues: str) -> frozenset[str]:
    """The names of a worker's queues, also without their limits: `mail:5` is `mail`."""
    texts = [text.strip() for text in orjson.loads(queues)]
    return frozenset(texts) | {name for name, _, limit in (text.partition(":") for text in texts) if limit.isdecimal()}


def _counted(sorts: list[Sort]) -> str:
    number = sum(sort.row.workers for sort in sorts)
    return "1 worker claims" if number == 1 else f"{number:,} workers claim"
