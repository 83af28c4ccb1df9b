"""The overview of a namespace: its queues, its workers, and what waits for a person.

Every count ends at a limit: it is fast however many jobs there are, and says so where it is a lower bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

import orjson

from onetray.domain.checks import FAR_US, text, whole
from onetray.domain.lifecycle import BLOCKED, QUEUE_PAUSED, RUNNING, STAGE, TASK, WAITING, WAITING_INPUT
from onetray.domain.overview import (
    HeldTask,
    MissingWorker,
    NeedsHuman,
    Overview,
    QueueOverview,
    Waiting,
    WaitingEntry,
    WaitingItem,
    WaitingPage,
    WorkerOverview,
)
from onetray.domain.worker import WorkerInfo
from onetray.engine.pending_writes import RUN
from onetray.engine.reads import DatabaseReads, read
from onetray.engine.worker_api import WorkerApi
from onetray.explain.limits import full_scopes
from onetray.explain.workers import RegisteredWorkers
from onetray.redaction.answers import plain
from onetray.store.overview_rows import ApprovalCountRow, HeldTaskRow, QueueCountRow, WaitingRow

MAX_COUNT = 10_000
"""Where counting ends."""
MAX_COUNT_OF_ALL = 200_000
"""How many ready tasks of all queues together are counted."""
MAX_DUE, MAX_LEASED = 2_000, 5_000
"""Among how many due rows delayed tasks are counted, and among how many leased ones those that are held."""
MAX_QUEUES, MAX_WORKERS, MAX_TASKS, MAX_FIRST, MAX_MISSING, MAX_KINDS = 200, 200, 20, 10, 20, 1_000
"""How many are listed: queues, workers, tasks of a worker, what waits of one sort, missing workers. And among how many
queues and kinds missing workers are looked for."""
MAX_ENTRIES, MAX_READS = 1_000, 10
"""How many a page of what waits has, and how often it is read for one: stages whose turn has not come are skipped."""
LOST, UNREGISTERED = "lost", "unregistered"


class OverviewApi(DatabaseReads):
    """The engine's read of the overview, on a database."""

    def __init__(self, workers: WorkerApi) -> None:
        super().__init__(workers.store, workers.config, workers.must_not_have_forked)
        self._workers = workers

    @read(plain)
    def overview(self, *, namespace: str = "default") -> Overview:
        """The queues with their numbers of tasks, the workers with what they run, and what waits for a person.

        Counting ends at 10,000 ready, 2,000 delayed and 5,000 claimed tasks: `at_least` says which numbers are lower
        bounds. The whole numbers: `queues`.
        """
        self.must_not_have_forked()
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        key = -1 if ns is None else ns
        registered = RegisteredWorkers(self.store, namespace)
        missing = [
            MissingWorker(queue, kind, m.code, m.problem, m.next_step)
            for queue, kind, m in islice(registered.all_missing(MAX_KINDS), MAX_MISSING)
        ]
        held = self.store.read("held_now", ns=key, most=MAX_LEASED, running=RUNNING)
        return Overview(
            self.store.now(), self._queues(key, held, registered, missing), self._worker_list(namespace, held),
            self._needs_human(key, missing),
        )  # fmt: skip

    def _queues(
        self, ns: int, held: list[HeldTaskRow], registered: RegisteredWorkers, missing: list[MissingWorker]
    ) -> list[QueueOverview]:
        ((number,),) = self.store.read("number_of_queues", ns=ns, most=MAX_QUEUES)
        most = min(MAX_COUNT, MAX_COUNT_OF_ALL // max(number, 1))
        full = full_scopes(self.store, ns)._asdict()
        rows = self.store.read("count_queues", ns=ns, most=most, limit=MAX_QUEUES, **full)
        delayed = dict(self.store.read("count_delayed", ns=ns, run=RUN, most=MAX_DUE))
        ((due, leased),) = self.store.read("count_scanned", ns=ns, due=MAX_DUE, most=MAX_LEASED)
        states = Counter((row.queue, row.state == RUNNING) for row in held)
        whys, unclaimed = self._pause_reasons(ns, rows), {m.queue: m.problem for m in reversed(missing)}
        not_all = (*(["delayed"] if due >= MAX_DUE else []), *(["held", "running"] if leased >= MAX_LEASED else []))
        return [
            QueueOverview(
                q.name, q.ready, delayed.get(q.key, 0), states[q.name, False], states[q.name, True],
                (*(name for name in ("ready", "limited") if getattr(q, name) >= most), *not_all),
                q.oldest_ready_at, q.paused_at, q.paused_by,
                whys.get(q.name) if q.paused_at is not None else None, registered.claiming_from(q.name),
                unclaimed.get(q.name), q.limited,
            )
            for q in rows
        ]  # fmt: skip

    def _pause_reasons(self, ns: int, queues: Sequence[QueueCountRow]) -> dict[str, str | None]:
        """Why queues were paused the last time, from the log."""
        paused = [q.paused_at for q in queues if q.paused_at is not None]
        if not paused:
            return {}
        pauses = self.store.read("last_pauses", ns=ns, paused=QUEUE_PAUSED, since=min(paused), limit=MAX_KINDS)
        return {orjson.loads(payload)["queue"]: cause for payload, cause in reversed(pauses)}

    def _worker_list(self, namespace: str, held: list[HeldTaskRow]) -> list[WorkerOverview]:
        by_owner: dict[str, list[HeldTask]] = defaultdict(list)
        for row in held:
            by_owner[row.owner].append(HeldTask(row.id, row.kind, row.queue, row.state, row.started_at))
        infos = self._workers.workers(namespace=namespace, limit=MAX_WORKERS)
        unregistered = sorted(by_owner.keys() - {info.name for info in infos})[: MAX_WORKERS - len(infos)]
        return [
            *(_registered(info, by_owner.get(info.name, [])) for info in infos),
            *(_unregistered(name, by_owner[name]) for name in unregistered),
        ]

    def _needs_human(self, ns: int, missing: list[MissingWorker]) -> NeedsHuman:
        inputs, blocked = (
            self._waiting("count_waiting", "first_waiting_tasks", ns=ns, state=state)
            for state in (WAITING_INPUT, BLOCKED)
        )
        letters = self._waiting("count_open_letters", "first_open_letters", ns=ns)
        return NeedsHuman(self._approvals(ns), inputs, blocked, letters, missing)

    def _approvals(self, ns: int) -> Waiting:
        """The stages that can be answered now, among the first that wait."""
        of = {"ns": ns, "state": WAITING, "most": MAX_COUNT}
        counts: ApprovalCountRow = self.store.read("count_approvals", **of)[0]
        items: list[WaitingItem] = self.store.read("first_approvals", **of, limit=MAX_FIRST) if counts.open else []
        return Waiting(counts.open, counts.waiting == MAX_COUNT, counts.oldest_at, items)

    @read(plain)
    def waiting(self, *, since: int = 0, after: int = 0, limit: int = 50, namespace: str = "default") -> WaitingPage:
        """Stages that can be approved now and tasks that wait for an answer, oldest first.

        A page may be short: the list ends when its `after` is None. Pass its `since` and `after` for the next one.
        """
        whole(since, "since", 0, FAR_US)
        self.check(after=after, limit=whole(limit, "limit", 1, MAX_ENTRIES))
        ns = self.store.names.namespace(text(namespace, "namespace", self.config.limits.name_chars))
        if ns is None:
            return WaitingPage([], None, None)
        entries: list[WaitingEntry] = []
        for _ in range(MAX_READS):
            rows, is_last = self._waiting_rows(ns, since, after, limit - len(entries))
            entries += [WaitingEntry(entity, r.id, r.job_id, r.kind, r.name, r.at) for entity, r in rows if r.is_next]
            if is_last:
                return WaitingPage(entries, None, None)
            since, after = rows[-1][1].at, rows[-1][1].key
            if len(entries) == limit:
                break
        return WaitingPage(entries, since, after)

    def _waiting_rows(self, ns: int, since: int, after: int, limit: int) -> tuple[list[tuple[str, WaitingRow]], bool]:
        """The next rows of stages and tasks together, and whether there are no more."""
        at = {"ns": ns, "since": since, "after": after, "limit": limit}
        stages = [(STAGE.entity, r) for r in self.store.read("waiting_stages_after", state=WAITING, **at)]
        tasks = [(TASK.entity, r) for r in self.store.read("waiting_tasks_after", state=WAITING_INPUT, **at)]
        rows = sorted(stages + tasks, key=lambda row: (row[1].at, row[1].key))
        return rows[:limit], len(rows) <= limit and len(stages) < limit and len(tasks) < limit

    def _waiting(self, count: str, first: str, **of: Any) -> Waiting:
        ((number, oldest_at),) = self.store.read(count, **of, most=MAX_COUNT + 1)
        items: list[WaitingItem] = self.store.read(first, **of, limit=MAX_FIRST) if number else []
        return Waiting(min(number, MAX_COUNT), number > MAX_COUNT, oldest_at, items)


def _registered(info: WorkerInfo, held: list[HeldTask]) -> WorkerOverview:
    return WorkerOverview(
        info.name, info.state if info.alive else LOST, info.host, info.pid, info.version, info.queues, info.kinds,
        info.concurrency, len(held), held[:MAX_TASKS], info.started_at, info.beat_at,
    )  # fmt: skip


def _unregistered(name: str, held: list[HeldTask]) -> WorkerOverview:
    return WorkerOverview(
        name, UNREGISTERED, None, None, None, (), (), None, len(held), held[:MAX_TASKS], None, None
    )  # fmt: skip
