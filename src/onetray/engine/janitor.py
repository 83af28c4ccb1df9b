"""The janitor: finds expired leases and due rows, and runs the system verbs for them.

system_verbs.py has their effects; retention.py deletes old jobs. Several janitors may run at once: they share the rows,
in bounded batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.errors import Unavailable
from onetray.domain.system_commands import EndCancel, Expire, Promote, SystemCommand, TimeOut
from onetray.engine.batch import HANDLERS
from onetray.engine.batch_context import BatchContext
from onetray.engine.bulk_steps import IDLE_S, BulkSteps
from onetray.engine.deletion import delete_step
from onetray.engine.flows.advance import continue_opening, continue_step, settle
from onetray.engine.flows.verbs import approval_is_due, time_out_flow
from onetray.engine.limit_rules import count_held
from onetray.engine.pending_writes import (
    APPROVAL,
    CANCEL,
    CASCADE,
    DEADLINE,
    DELETE,
    FLOW_DEADLINE,
    OPEN_STAGE,
    QUEUE_TTL,
    RUN,
    TIMEOUT,
    PendingWrites,
)
from onetray.engine.retention import ROUND_S, Retention
from onetray.engine.slots import (
    COUNT_LIMIT,
    OF_LIMITS,
    OPEN_LANE,
    OPEN_LIMIT,
    OPEN_RULE,
    open_lanes,
    open_limits,
    open_rule,
)
from onetray.store.base import Store, Tx
from onetray.store.retry_transaction import ROLLED_BACK, Outage
from onetray.store.rows import DueRow, TaskRow

logger = logging.getLogger("onetray.janitor")

BATCH = 500
MIN_WAIT_S = 0.001


def _command(what: str, key: int, fence: int) -> SystemCommand:
    fence_or_none = fence or None
    match what:
        case "run":
            return Promote(task=key, fence=fence_or_none)
        case "cancel":
            return EndCancel(task=key, fence=fence_or_none)
        case _:
            return TimeOut(task=key, fence=fence_or_none, limit=what)


OF_TASKS = (RUN, CANCEL, QUEUE_TTL, DEADLINE, TIMEOUT)
OF_FLOWS, OF_STAGES = (FLOW_DEADLINE, CASCADE, DELETE), (APPROVAL, OPEN_STAGE)
KNOWN = (*OF_TASKS, *OF_FLOWS, *OF_STAGES, *OF_LIMITS)
NewBatch = Callable[[Tx, int], BatchContext]


def expire_leases(
    store: Store, new_batch: NewBatch, now: int | None = None, limit: int = BATCH, ns: int | None = None
) -> list[int]:
    """See Engine.expire_leases. With `ns`, those of one namespace only."""

    def expire(tx: Tx) -> tuple[list[int], bool]:
        before = tx.now if now is None else now
        rows = tx.query("expired_leases", before=before, limit=limit, ns=ns)
        leases = _limit_tasks(rows, limit)
        # Most expired leases have no held tasks left: go on until one has, or all are read.
        is_complete = len(leases) == len(rows) < limit
        return (_expire_leases(tx, new_batch, before, leases) if leases else []), is_complete

    while True:
        try:
            expired, is_complete = store.write(expire, again=False)
        except Exception as e:
            if _is_temporary(e):
                raise
            return _expire_one_by_one(store, new_batch, now, limit, ns)
        if expired or is_complete:
            return expired


Leases = list[tuple[int, list[int]]]
"""The keys of leases, each with the keys of its tasks."""


def _limit_tasks(leases: list[tuple[int, str]], limit: int) -> Leases:
    """The first leases that together have no more tasks than the limit, but at least one."""
    left = limit
    first: Leases = []
    for key, tasks in leases:
        keys = orjson.loads(tasks)
        left -= len(keys)
        if left < 0 and first:
            break
        first.append((key, keys))
    return first


def _expire_leases(tx: Tx, new_batch: NewBatch, before: int, leases: Leases, whole: bool = True) -> list[int]:
    # Tasks before leases, as everywhere: a heartbeat locks its task and then renews the lease.
    batch = new_batch(tx, 0)
    rows = _lock_with_flows(batch, _held_in(tx, leases))
    expired = {key for (key,) in tx.query("still_expired", keys=sorted(k for k, _ in leases), before=before)}
    tasks = _expire_tasks(batch, before, [row for row in rows if row.lease in expired])
    if whole:
        tx.query("delete_leases", keys=sorted(expired))
    batch.outcomes.write()
    batch.limit_changes.write()
    return tasks


def _held_in(tx: Tx, leases: Leases) -> set[int]:
    """The tasks that still hold one of these leases. Most have ended, and a task never returns to an old lease."""
    keys, lease_keys = sorted({k for _, tasks in leases for k in tasks}), {key for key, _ in leases}
    return {task.key for task in tx.query("held_tasks", keys=keys) if task.lease in lease_keys} if keys else set()


def _lock_with_flows(batch: BatchContext, keys: set[int], flows: set[int] | None = None) -> list[TaskRow]:
    """Lock the flows of these tasks and further flows, then the tasks."""
    tx = batch.tx
    parents = {job for (job,) in tx.query("flows_of_tasks", keys=sorted(keys))} if keys else set()
    if parents or flows:
        batch.locked.lock(sorted(parents | (flows or set())))
    rows = tx.lock(sorted(keys)) if keys else []
    if parents:
        batch.locked.load(rows)
    return rows


def _expire_tasks(batch: BatchContext, before: int, held: list[TaskRow]) -> list[int]:
    batch.reset_verdicts(len(held))
    work = [(i, Expire(task=row.key, lease=row.lease, as_of=before), row) for i, row in enumerate(held)]
    HANDLERS["expire"](batch, work)
    settle(batch)
    return [row.key for (_, _, row), verdict in zip(work, batch.verdicts, strict=True) if verdict.ok]


def _is_temporary(e: Exception) -> bool:
    """Whether a retry may succeed: the database was unavailable, or the transaction lost a deadlock."""
    return isinstance(e, Unavailable) or getattr(e, "sqlstate", None) in ROLLED_BACK


def _expire_one_by_one(store: Store, new_batch: NewBatch, now: int | None, limit: int, ns: int | None) -> list[int]:
    """Handle each row of a failed batch in its own transaction. Raises the last error at the end."""
    before = store.now() if now is None else now
    expired: list[int] = []
    failure: Exception | None = None
    for lease, tasks in store.read("expired_leases", before=before, limit=limit, ns=ns):
        keys = orjson.loads(tasks)
        # Each task alone, then the lease: it stays as long as one of its tasks cannot be expired.
        for group in [*([key] for key in keys), keys]:
            try:
                part, whole = [(lease, group)], group is keys
                expired += store.write(
                    partial(_expire_leases, new_batch=new_batch, before=before, leases=part, whole=whole), again=False
                )
            except Exception as e:
                if _is_temporary(e):
                    raise
                logger.error("tasks %s of lease %d cannot be expired, run `onetray verify`: %s", group, lease, e)
                failure = e
    if failure is not None:
        raise failure
    return expired


def do_due(store: Store, new_batch: NewBatch, limit: int = BATCH) -> int:
    """See Engine.do_due."""

    def handle(tx: Tx) -> tuple[int, bool]:
        found = tx.query("due_now", now=tx.now, known=list(KNOWN), limit=limit)
        due = _together(found)
        if due:
            _handle_due(tx, new_batch, due)
        return len(due), len(due) == len(found)

    done, is_complete = 0, False
    try:
        while not is_complete:
            number, is_complete = store.write(handle, again=False)
            done += number
        return done
    except Exception as e:
        if _is_temporary(e):
            raise
        return _handle_due_one_by_one(store, new_batch, limit)


def _together(due: list[DueRow]) -> list[DueRow]:
    """The rows that one transaction handles: those of limits, which lock counters, apart from others, which do so at
    their end; and each step for a whole limit for itself."""
    of_limits = [row for row in due if row.what in OF_LIMITS]
    steps = [row for row in of_limits if row.what in (COUNT_LIMIT, OPEN_RULE)]
    return steps[:1] or of_limits or due


def _handle_due(tx: Tx, new_batch: NewBatch, due: list[DueRow]) -> None:
    # All locks at once and sorted: locked verb by verb, they could deadlock with a batch that needs two of them.
    batch = new_batch(tx, 0)
    stages = {row.task for row in due if row.what in OF_STAGES}
    flows = {row.task for row in due if row.what in OF_FLOWS}
    if stages:
        flows |= {stage.job for stage in tx.query("stages_by_key", keys=sorted(stages))}
    tasks = _lock_with_flows(batch, {row.task for row in due if row.what in OF_TASKS}, flows)
    run_at = {task.key: task.run_at for task in tasks}
    # A rescheduled task has another due row, for its new time.
    current = [row for row in due if row.what != RUN or row.at == run_at.get(row.task)]
    # A task may have two due rows: the second verb runs on the row that the first one has left.
    for what in OF_TASKS:
        _run_commands(batch, [_command(row.what, row.task, row.fence) for row in current if row.what == what])
    batch.locked.load_stages(stages)
    # Delete first: the steps of flows may insert the same due row again.
    tx.batch("delete_due", {
        "at": [row.at for row in due], "key": [row.task for row in due], "what": [row.what for row in due],
    })  # fmt: skip
    for row in due:
        if row.what in OF_FLOWS or row.what in OF_STAGES:
            _handle_flow_or_stage(batch, row.at, row.task, row.what)
    batch.outcomes.write()
    batch.limit_changes.write()
    _handle_limits(tx, due)


def _handle_limits(tx: Tx, due: list[DueRow]) -> None:
    """Open what waits for limits, and put new limits into force."""
    for row in due:
        if row.what == COUNT_LIMIT:
            count_held(tx, row.task)
        elif row.what == OPEN_RULE:
            open_rule(tx, row.task)
    if lanes := [row.task for row in due if row.what == OPEN_LANE]:
        open_lanes(tx, lanes)
    if counters := {row.task for row in due if row.what == OPEN_LIMIT}:
        open_limits(tx, sorted(counters))


def _handle_flow_or_stage(batch: BatchContext, at: int, key: int, what: str) -> None:
    """Handle a due row of a flow or a stage. Does nothing if it was pruned."""
    locked = batch.locked
    flow = locked.flows.get(key if what in OF_FLOWS else locked.stages[key].job if key in locked.stages else 0)
    if flow is None:
        return
    if what == FLOW_DEADLINE:
        time_out_flow(batch, flow)
    elif what == DELETE:
        if flow.deleted_at is not None and not delete_step(batch.tx, flow):
            PendingWrites(batch).due_now(flow.key, DELETE)
    elif what == CASCADE:
        continue_step(locked, flow)
    elif what == APPROVAL:
        approval_is_due(batch, flow, locked.stages[key], at)
    else:
        continue_opening(locked, locked.stages[key])
    settle(batch)


def _handle_due_one_by_one(store: Store, new_batch: NewBatch, limit: int) -> int:
    """Handle each row of a failed batch in its own transaction. Raises the last error at the end."""
    done = 0
    failure: Exception | None = None
    for row in store.read("due_now", now=store.now(), known=list(KNOWN), limit=limit):
        try:
            store.write(partial(_handle_due, new_batch=new_batch, due=[row]), again=False)
            done += 1
        except Exception as e:
            if _is_temporary(e):
                raise
            logger.error("due row %r of %d cannot be handled, run `onetray verify`: %s", row.what, row.task, e)
            failure = e
    if failure is not None:
        raise failure
    return done


def _run_commands(batch: BatchContext, commands: list[SystemCommand]) -> None:
    """Run system commands of one verb in the janitor's transaction."""
    if not commands:
        return
    unique: dict[int, tuple[int, SystemCommand]] = {}
    for i, command in enumerate(commands):
        assert isinstance(command.task, int)
        first = unique.setdefault(command.task, (i, command))[1]
        # A due row of an older attempt must not hide the one of the current attempt.
        if (command.fence or 0) > (first.fence or 0):
            unique[command.task] = i, command
    batch.reset_verdicts(len(commands))
    rows = {row.key: row for row in batch.tx.lock(sorted(unique))}
    work = [(i, command, rows[key]) for key, (i, command) in unique.items() if key in rows]
    if work:
        HANDLERS[commands[0].verb](batch, work)
        settle(batch)


class Janitor:
    """The thread: sweeps when the next row is due, and at least every `every_s`.

    A row that comes in later and is due sooner moves the next sweep forward: see `sweep_within`.
    """

    def __init__(
        self, sweep: Callable[[], int], next_in_s: Callable[[], float], every_s: float = 1.0,
        retention: Retention | None = None, outage: Outage | None = None, bulk: BulkSteps | None = None,
        name: str = "onetray-janitor",
    ) -> None:  # fmt: skip
        self._sweep, self._next_in_s, self._every_s = sweep, next_in_s, every_s
        self._outage = outage or Outage()
        # Each in its own thread: due rows must not wait for them.
        self._pruner = None if retention is None else self._beside(retention, ROUND_S, "onetray-retention")
        self._bulk = None if bulk is None else self._beside(bulk, IDLE_S, "onetray-bulk")
        self._changed = threading.Condition()
        self._sweep_at = float("-inf")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _beside(self, steps: Steps, every_s: float, name: str) -> Janitor:
        return Janitor(_step_of(steps), lambda: steps.rest_s, every_s, outage=self._outage, name=name)

    def start(self) -> None:
        self._thread.start()
        for beside in (self._pruner, self._bulk):
            if beside is not None:
                beside.start()

    def start_bulk_now(self) -> None:
        """Look for bulk operations at once."""
        if self._bulk is not None:
            self._bulk.sweep_within(0)

    def stop(self) -> None:
        for beside in (self._pruner, self._bulk):
            if beside is not None:
                beside.stop()
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def sweep_within(self, wait_s: float) -> None:
        """Sweep in this time at the latest: a row is due then. Quick: it only moves the next sweep forward."""
        at = time.monotonic() + max(MIN_WAIT_S, wait_s)
        with self._changed:
            if at < self._sweep_at:
                self._sweep_at = at
                self._changed.notify()

    def _run(self) -> None:
        while not self._stopping:
            # Before the sweep: it does not see what is committed from here on.
            self._sweep_at = float("inf")
            self.sweep_within(self._sweep_due())
            self._rest()

    def _rest(self) -> None:
        with self._changed:
            while not self._stopping and (left_s := self._sweep_at - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _sweep_due(self) -> float:
        """Sweep until nothing is due. Returns how long to wait for the next sweep."""
        began_at = time.monotonic()
        try:
            while self._sweep() and not self._stopping:
                pass
            wait_s = self._next_in_s()
            self._outage.answered()
            return min(self._every_s, wait_s)
        except Unavailable as e:
            self._outage.failed("the janitor waits", e, began_at)
        except Exception:
            logger.exception("the janitor's sweep failed")
        return self._every_s


class Steps(Protocol):
    """Work that is done in steps: after each, wait for `rest_s`."""

    rest_s: float

    def step(self) -> object: ...


def _step_of(steps: Steps) -> Callable[[], int]:
    """A sweep that runs one step. Returns 0, so that the loop pauses after it."""

    def sweep() -> int:
        steps.step()
        return 0

    return sweep


class DueTimes:
    """When rows are due, in seconds from now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock: tuple[int, float] | None = None
        """The database's time, and when it was read."""

    def next_in_s(self) -> float:
        """Seconds until the next lease expires, the next row is due or the next schedule fires."""
        rows = [
            *self._store.read("next_due", known=list(KNOWN)), *self._store.read("next_expiry"),
            *self._store.read("next_look"),
        ]  # fmt: skip
        now = self._store.now()
        self._clock = now, time.monotonic()
        times = [at for (at,) in rows if at is not None]
        return (min(times) - now) / SECOND if times else 3600.0

    def in_s(self, at: int) -> float:
        """Seconds until a time of the database, without a query."""
        if self._clock is None:
            return 0.0
        now, read_at = self._clock
        return (at - now) / SECOND - (time.monotonic() - read_at)
