"""Find the work whose time has come: expired leases, due rows.

Owns when the system verbs run. What they do is in system_verbs.py; how old jobs are removed, in retention.py. Several
janitors may run at once: each row is taken by one, in bounded batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.errors import Unavailable
from onetray.domain.system_commands import EndCancel, Expire, Promote, SystemCommand, TimeOut
from onetray.engine.batch import HANDLERS
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.advance import go_on_opening, settle, step
from onetray.engine.flows.verbs import approval_is_due, time_out_flow
from onetray.engine.pending_writes import (
    APPROVAL,
    CANCEL,
    CASCADE,
    DEADLINE,
    FLOW_DEADLINE,
    OPEN_STAGE,
    QUEUE_TTL,
    RUN,
    TIMEOUT,
)
from onetray.engine.retention import ROUND_S, Retention
from onetray.store.base import Store, Tx
from onetray.store.retry_transaction import LOST_TO_OTHERS
from onetray.store.rows import DueRow, TaskRow

logger = logging.getLogger("onetray.janitor")

BATCH = 500


def _command(what: str, key: int, fence: int) -> SystemCommand:
    meant = fence or None
    match what:
        case "run":
            return Promote(task=key, fence=meant)
        case "cancel":
            return EndCancel(task=key, fence=meant)
        case _:
            return TimeOut(task=key, fence=meant, limit=what)


OF_TASKS = (RUN, CANCEL, QUEUE_TTL, DEADLINE, TIMEOUT)
OF_FLOWS, OF_STAGES = (FLOW_DEADLINE, CASCADE), (APPROVAL, OPEN_STAGE)
KNOWN = (*OF_TASKS, *OF_FLOWS, *OF_STAGES)
NewBatch = Callable[[Tx, int], BatchContext]


def expire_leases(store: Store, new_batch: NewBatch, now: int | None = None, limit: int = BATCH) -> list[int]:
    """Return abandoned work to the queue. Answers the keys of the tasks that were taken back."""

    def take_back(tx: Tx) -> tuple[list[int], bool]:
        before = tx.now if now is None else now
        found = tx.query("expired_leases", before=before, limit=limit)
        leases = _within(found, limit)
        # Leases whose work is done are many: what was abandoned may stand behind them.
        all_seen = len(leases) == len(found) < limit
        return (_take_back(tx, new_batch, before, leases) if leases else []), all_seen

    while True:
        try:
            taken, all_seen = store.write(take_back, again=False)
        except Exception as e:
            if _may_pass(e):
                raise
            return _take_back_one_by_one(store, new_batch, now, limit)
        if taken or all_seen:
            return taken


Leases = list[tuple[int, list[int]]]
"""Leases by their keys, with the keys of their tasks."""


def _within(leases: list[tuple[int, str]], limit: int) -> Leases:
    """As many leases as have no more tasks than the limit; one at least."""
    room = limit
    some: Leases = []
    for key, tasks in leases:
        keys = orjson.loads(tasks)
        room -= len(keys)
        if room < 0 and some:
            break
        some.append((key, keys))
    return some


def _take_back(tx: Tx, new_batch: NewBatch, before: int, leases: Leases, whole: bool = True) -> list[int]:
    # Tasks before leases, as everywhere: a heartbeat locks its task and then renews the lease.
    batch = new_batch(tx, 0)
    rows = _lock(batch, _still_in(tx, leases))
    dead = {key for (key,) in tx.query("still_expired", keys=sorted(k for k, _ in leases), before=before)}
    taken = _expire(batch, before, [row for row in rows if row.lease in dead])
    if whole:
        tx.query("delete_leases", keys=sorted(dead))
    batch.outcomes.write()
    return taken


def _still_in(tx: Tx, leases: Leases) -> set[int]:
    """The tasks that are in one of these leases. Most have ended; and none comes back to a lease that it has left."""
    keys, own = sorted({k for _, tasks in leases for k in tasks}), {key for key, _ in leases}
    return {task.key for task in tx.query("held_tasks", keys=keys) if task.lease in own} if keys else set()


def _lock(batch: BatchContext, keys: set[int], flows: set[int] | None = None) -> list[TaskRow]:
    """Lock the flows of these tasks, and further ones, then the tasks."""
    tx = batch.tx
    parents = {job for (job,) in tx.query("flows_of_tasks", keys=sorted(keys))} if keys else set()
    if parents or flows:
        batch.locked.lock(sorted(parents | (flows or set())))
    rows = tx.lock(sorted(keys)) if keys else []
    if parents:
        batch.locked.load(rows)
    return rows


def _expire(batch: BatchContext, before: int, held: list[TaskRow]) -> list[int]:
    batch.expect(len(held))
    work = [(i, Expire(task=row.key, lease=row.lease, as_of=before), row) for i, row in enumerate(held)]
    HANDLERS["expire"](batch, work)
    settle(batch)
    return [row.key for (_, _, row), verdict in zip(work, batch.verdicts, strict=True) if verdict.ok]


def _may_pass(e: Exception) -> bool:
    """Whether the same work may succeed the next time: the database was away, or others were in the way."""
    return isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in LOST_TO_OTHERS


def _take_back_one_by_one(store: Store, new_batch: NewBatch, now: int | None, limit: int) -> list[int]:
    """The batch was rolled back: let those pass that do not break it, then say what does."""
    before = store.now() if now is None else now
    taken: list[int] = []
    broken: Exception | None = None
    for lease, tasks in store.read("expired_leases", before=before, limit=limit):
        keys = orjson.loads(tasks)
        # Each task by itself, then the lease: it stays while one of its tasks cannot be taken back.
        for some in [*([key] for key in keys), keys]:
            try:
                part, whole = [(lease, some)], some is keys
                taken += store.write(
                    partial(_take_back, new_batch=new_batch, before=before, leases=part, whole=whole), again=False
                )
            except Exception as e:
                if _may_pass(e):
                    raise
                logger.error("of lease %d, %s cannot be taken back; run `onetray verify`: %s", lease, some, e)
                broken = e
    if broken is not None:
        raise broken
    return taken


def do_due(store: Store, new_batch: NewBatch, limit: int = BATCH) -> int:
    """Promote, time out and end cancels that are due. Answers how many due rows were dealt with."""

    def deal_with(tx: Tx) -> int:
        due = tx.query("due_now", now=tx.now, known=list(KNOWN), limit=limit)
        if due:
            _deal_with(tx, new_batch, due)
        return len(due)

    try:
        return store.write(deal_with, again=False)
    except Exception as e:
        if _may_pass(e):
            raise
        return _deal_with_one_by_one(store, new_batch, limit)


def _deal_with(tx: Tx, new_batch: NewBatch, due: list[DueRow]) -> None:
    # All of them at once and sorted: locked verb by verb, they could cross with a batch that wants two of them.
    batch = new_batch(tx, 0)
    stages = {row.task for row in due if row.what in OF_STAGES}
    flows = {row.task for row in due if row.what in OF_FLOWS}
    if stages:
        flows |= {stage.job for stage in tx.query("stages_by_key", keys=sorted(stages))}
    tasks = _lock(batch, {row.task for row in due if row.what in OF_TASKS}, flows)
    run_at = {task.key: task.run_at for task in tasks}
    # A task that was put off in the meantime is left to the row of its new time.
    apt = [row for row in due if row.what != RUN or row.at == run_at.get(row.task)]
    # A task may be due for two things: the earlier one first, then the other as it stands after it.
    for what in OF_TASKS:
        _apply(batch, [_command(row.what, row.task, row.fence) for row in apt if row.what == what])
    batch.locked.load_stages(stages)
    # Before what goes on: it may leave the same row for its next step.
    tx.batch("delete_due", {
        "at": [row.at for row in due], "key": [row.task for row in due], "what": [row.what for row in due],
    })  # fmt: skip
    for row in due:
        if row.what not in OF_TASKS:
            _go_on(batch, row.at, row.task, row.what)
    batch.outcomes.write()


def _go_on(batch: BatchContext, at: int, key: int, what: str) -> None:
    """What is due for a flow or a stage. One that was pruned is not there any more."""
    locked = batch.locked
    flow = locked.flows.get(key if what in OF_FLOWS else locked.stages[key].job if key in locked.stages else 0)
    if flow is None:
        return
    if what == FLOW_DEADLINE:
        time_out_flow(batch, flow)
    elif what == CASCADE:
        step(locked, flow)
    elif what == APPROVAL:
        approval_is_due(batch, flow, locked.stages[key], at)
    else:
        go_on_opening(locked, locked.stages[key])
    settle(batch)


def _deal_with_one_by_one(store: Store, new_batch: NewBatch, limit: int) -> int:
    """The batch was rolled back: let those pass that do not break it, then say what does."""
    done = 0
    broken: Exception | None = None
    for row in store.read("due_now", now=store.now(), known=list(KNOWN), limit=limit):
        try:
            store.write(partial(_deal_with, new_batch=new_batch, due=[row]), again=False)
            done += 1
        except Exception as e:
            if _may_pass(e):
                raise
            logger.error("task %d cannot be moved though it is due, run `onetray verify`: %s", row.task, e)
            broken = e
    if broken is not None:
        raise broken
    return done


def _apply(batch: BatchContext, commands: list[SystemCommand]) -> list[int]:
    """Carry out system commands of one verb inside the janitor's own transaction."""
    if not commands:
        return []
    unique: dict[int, tuple[int, SystemCommand]] = {}
    for i, command in enumerate(commands):
        assert isinstance(command.task, int)
        first = unique.setdefault(command.task, (i, command))[1]
        # A row that an older attempt has left must not stand in the way of the current one's.
        if (command.fence or 0) > (first.fence or 0):
            unique[command.task] = i, command
    batch.expect(len(commands))
    rows = {row.key: row for row in batch.tx.lock(sorted(unique))}
    work = [(i, command, rows[key]) for key, (i, command) in unique.items() if key in rows]
    if work:
        HANDLERS[commands[0].verb](batch, work)
        settle(batch)
    return [row.key for i, _, row in work if batch.verdicts[i].ok]


class Janitor:
    """The loop: wakes up when the next thing is due, and at least every `every_s`."""

    def __init__(
        self, sweep: Callable[[], int], next_at: Callable[[], float], every_s: float = 1.0,
        retention: Retention | None = None,
    ) -> None:  # fmt: skip
        self._sweep, self._next_in_s, self._every_s = sweep, next_at, every_s
        # In a thread of its own: what is due must not wait for it.
        self._beside = None if retention is None else Janitor(_then_rest(retention), lambda: retention.rest_s, ROUND_S)
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="onetray-janitor", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._beside is not None:
            self._beside.start()

    def stop(self) -> None:
        if self._beside is not None:
            self._beside.stop()
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        away = False
        while not self._stopping:
            wait = self._every_s
            try:
                while self._sweep() and not self._stopping:
                    pass
                wait = min(self._every_s, max(0.001, self._next_in_s()))
                away = False
            except Unavailable as e:
                if not away:
                    logger.warning("the janitor waits for the database: %s", e)
                away = True
            except Exception:
                logger.exception("the janitor's sweep failed")
            self._wake.wait(wait)
            self._wake.clear()


def _then_rest(retention: Retention) -> Callable[[], int]:
    """A step of the retention as a sweep after which nothing is left to do at once."""

    def sweep() -> int:
        retention.step()
        return 0

    return sweep


def seconds_until_next(store: Store) -> float:
    """How long until the next lease expires or the next due row is due."""
    rows = store.read("next_due", known=list(KNOWN)) + store.read("next_expiry")
    times = [at for (at,) in rows if at is not None]
    return (min(times) - store.now()) / SECOND if times else 3600.0
