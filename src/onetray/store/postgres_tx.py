"""One transaction on PostgreSQL: statements in few round trips, checked moves, claims that never wait for a lock.

Owns everything between BEGIN and COMMIT. postgres.py owns connections and resolves a COMMIT whose answer was lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onetray import failpoints
from onetray.domain.lifecycle import TASK
from onetray.domain.machine import Transition
from onetray.notify.new_work import NewWork, count_due, count_statement
from onetray.notify.postgres import NOTIFY
from onetray.store.base import WAKING, Columns, FullClaim, LoneClaim, LoneTask, Rows, in_rows
from onetray.store.commit_check import WrittenRow, row_of_batch, row_of_move, row_of_submit
from onetray.store.event_log import BLOCK, NewRow, long_lists, rows_of, rows_of_move, slices_of
from onetray.store.full_claim_sql import full_claim_of, full_claim_query
from onetray.store.interned import InternedNames
from onetray.store.limit_rows import BlockedLaneRow
from onetray.store.low_water import START_OF_QUEUE, LowWater, first_entry
from onetray.store.pg_copy import CopyBuffer
from onetray.store.pg_pipeline import Query, bind_postgres, run_queries
from onetray.store.rows import ClaimedRow, FlowRow, LeaseNowRow, StageRow, TaskRow
from onetray.store.sql_template import PARAM, POSTGRES, WORDS, Statement
from onetray.store.waiting_rows import update_waiting

if TYPE_CHECKING:
    from psycopg import Connection

    from onetray.store.postgres import PostgresStore

COPY_FROM = 50
"""COPY is faster than an INSERT of arrays from this number of tasks on."""
LEASE_KEY_BLOCK = 100
TOO_FEW = "a move changed fewer rows than expected; the transaction was rolled back"
CLOCK = str(WORDS[POSTGRES]["clock"]).replace(":now", "%(now)s")
# Every statement of a transaction finds its rows through an index. Without statistics, or with old ones, the planner
# may prefer to scan a whole table, or to sort all claimable tasks.
_BY_INDEX = ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit")
)
# One plan for all batches: by default PostgreSQL would plan some statements again for each.
_PLANNED_ONCE = "set_config('plan_cache_mode', 'force_generic_plan', true)"
PREPARE = f"SELECT pg_current_xact_id()::text, {CLOCK}, {_BY_INDEX}, {_PLANNED_ONCE}"
"""The first statement of a transaction. It takes the transaction id before the first nextval of an event id: the feed's
barrier relies on it."""
REQUEST_LOCK = "pg_advisory_xact_lock(hashtextextended(:request, :ns))"
"""Held by a claim with a request key until its transaction ends: the same claim, repeated, waits for it."""
LOCK_REQUEST = PARAM.sub(r"%(\1)s", f"SELECT {REQUEST_LOCK}")
# As one text: one row for each number would cost more than the numbers.
NEXT = "SELECT string_agg(nextval(%(sequence)s)::text, ',') FROM generate_series(1, %(count)s)"


class PostgresTx:
    is_callers, skips_locked = False, True

    def __init__(self, connection: Connection[Any], store: PostgresStore) -> None:
        self._connection = connection
        self._store = store
        self._statements = store.statements
        self.names: InternedNames = store.names
        self.mixed, self.limited = store.mixed, store.limited
        self._test_time = store.clock.now() if store.clock else None
        self._pending: list[Query] = [("BEGIN", {})]
        self._deferred: list[tuple[int, Statement, Rows]] = []
        self._entered: list[Columns] = []
        self._opened = False
        self._picked: dict[int, set[int]] = {}
        self._head: tuple[int, list[ClaimedRow], int] | None = None
        """What `claim_full` has locked and left to the next pick: the queue, the tasks, and the entries at its mark."""
        self._now: int | None = None
        self.xid: str | None = None
        self.wakes = False
        self.work: NewWork[int] = NewWork()
        self.written_row: WrittenRow | None = None

    @property
    def now(self) -> int:
        if self._now is None:
            self._send()
        assert self._now is not None
        return self._now

    def query(self, name: str, /, **params: Any) -> Rows:
        statement = self._statements.by_name[name]
        self.wakes |= name in WAKING
        count_statement(self.work, name, params)
        params.setdefault("now", self._test_time)
        rows = statement.rows(self._send((statement.sql, bind_postgres(statement, params))))
        if name == "open_ready":
            self._opened = True
            self.work.count([row.queue for row in rows if row.queue > 0], 0)
        return rows

    def query_later(self, name: str, /, **params: Any) -> Rows:
        statement = self._statements.by_name[name]
        params.setdefault("now", self._test_time)
        rows: Rows = []
        self._deferred.append((len(self._pending), statement, rows))
        self._pending.append((statement.sql, bind_postgres(statement, params)))
        return rows

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        statement = self._statements.for_batch(name, columns)
        self.wakes |= name in WAKING
        count_statement(self.work, name, columns)
        if name == "insert_due":
            count_due(self.work, columns["at"], self.now)
        self.written_row = self.written_row or row_of_batch(name, columns)
        if name in ("insert_ready", "promote_ready"):
            self._entered.append(columns)
        elif name == "delete_ready" and self._picked:
            for left in self._picked.values():
                left.difference_update(columns["key"])
        query = statement.sql, bind_postgres(statement, {"now": self._test_time, **columns, **params})
        if statement.returns:
            return statement.rows(self._send(query))
        self._pending.append(query)
        return []

    def move(self, hops: tuple[Transition, ...], columns: Columns, held: bool = False) -> None:
        move = self._statements.move(hops, columns, held)
        self.wakes = True
        for size, part in slices_of(columns, len(columns["key"]), BLOCK // len(hops)):
            failpoints.hit("moving")
            self.written_row = self.written_row or row_of_move(hops, part)
            self._pending.append((move.sql, {**bind_postgres(move, part), "size": size}))
            if failpoints.hook is not None:
                self._send()
            failpoints.hit("updated")
            self._record(rows_of_move(hops, part))
            if long := long_lists(hops, part):
                for step in ("page", "trim"):
                    self.query_later(f"{step}_events_of_{hops[0].entity}", keys=long)
            failpoints.hit("moved")
        update_waiting(self, hops, columns)

    def _record(self, rows: Iterable[NewRow], event: int | None = None) -> None:
        """Write rows of the log, by default with the ids that the statement before has taken."""
        sql = self._statements.by_name["insert_event_batch"].sql
        for row in rows:
            # As text: a statement is prepared anew for each combination of numbers and nulls.
            values = {name: None if value is None else str(value) for name, value in row.columns.items()}
            self._pending.append((sql, {**values, "event": event, "place": str(row.place)}))
            if row.flows:
                self.batch("insert_flow_events", {"job": row.flows}, event=event, place=row.place)

    def lock(self, keys: list[int]) -> list[TaskRow]:
        return self._locked_tasks(self.query("lock_tasks", keys=keys))

    def lock_flows_and_tasks(
        self, flows: list[int], tasks: list[int]
    ) -> tuple[list[FlowRow], list[TaskRow], list[StageRow]]:
        # In one round trip: each statement runs when the one before it has its locks, and sees what was committed then.
        flow_rows: list[FlowRow] = self.query_later("lock_flows", keys=flows)
        locked: list[TaskRow] = self.query_later("lock_tasks", keys=tasks)
        stages: list[StageRow] = self.query("stages_of_tasks", keys=tasks)
        return self._locked_flows(flow_rows), self._locked_tasks(locked), stages

    def _locked_tasks(self, locked: list[TaskRow]) -> list[TaskRow]:
        if locked:
            # The time never goes back: a task that was due when it was found must be due when it is decided.
            self._now = max(self._now or 0, locked[-1].seen_at)
        rows = self._with_current_leases(locked)
        failpoints.hit("locked")
        return rows

    def _with_current_leases(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Read the expiry of leases that seem to have expired again.

        A statement that waits for a task's lock sees the leases from before its wait: a new lease is missing, a
        renewed one is old. Expiries only increase, so those in the future need no second read.
        """
        old = {r.lease for r in rows if r.lease is not None and (r.lease_expires_at or 0) < self.now}
        if not old:
            return rows
        leases = {lease.key: lease for lease in self.query("leases_by_key", keys=sorted(old))}
        return [_with_lease(r, leases.get(r.lease or 0)) if r.lease in old else r for r in rows]

    def lock_flows(self, keys: list[int]) -> list[FlowRow]:
        return self._locked_flows(self.query("lock_flows", keys=keys))

    def lock_free_flows(self, keys: list[int]) -> list[FlowRow]:
        return self._locked_flows(self.query("lock_free_flows", keys=keys))

    def _locked_flows(self, rows: list[FlowRow]) -> list[FlowRow]:
        if rows:
            self._now = max(self._now or 0, rows[-1].seen_at)
        failpoints.hit("flows_locked")
        return rows

    def pick(self, queue: int, kinds: list[int] | None, limit: int, past_breakers: bool = False) -> list[ClaimedRow]:
        if kinds is None:
            rows = self._pick_any(queue, limit, past_breakers)
        elif len(kinds) == 1:
            rows = self._pick_kind(queue, kinds[0], limit, past_breakers)
        else:
            rows = self._pick_kinds(queue, kinds, limit, past_breakers)
        # Used now or never: after this pick they may be claimed.
        self._head = None
        if rows:
            self._picked.setdefault(queue, set()).update([row.key for row in rows])
            # The maximum: the last row need not come from the last statement.
            self.not_before(max([row.seen_at for row in rows]))
        return rows

    def lock_blocked_lanes(self, limits: Mapping[int, int]) -> list[BlockedLaneRow]:
        return self.query("lock_blocked_lanes", keys=list(limits), limits=list(limits.values()))

    def pick_from_lanes(self, limits: Mapping[int, int]) -> list[ClaimedRow]:
        rows: list[ClaimedRow] = sorted(self.query("claim_lanes", keys=list(limits), limits=list(limits.values())))
        self.not_before(max((row.seen_at for row in rows), default=0))
        return rows

    def _pick_any(self, queue: int, limit: int, past_breakers: bool) -> list[ClaimedRow]:
        low = self._store.low_water.setdefault(queue, LowWater())
        # Tasks that this transaction has put before the mark count, too.
        self.lower_marks()
        if low.can_start_at_mark():
            if self._head is not None and self._head[0] == queue:
                _, rows, entries = self._head
            else:
                entries = low.entries
                rows = sorted(self._claim_any("claim_head", queue, low.rank, low.task, limit, past_breakers))
            if not rows:
                # The tasks of these ready rows may be locked for another reason than a claim: look past them.
                rows = self._claim_any("claim_any", queue, low.rank, low.task, limit, past_breakers)
            # If these are fewer than the limit, there may be tasks before the mark: from a late commit, a requeue, a
            # higher priority, a claim that was rolled back. Scan for them at once unless such scans are slow.
            if len(rows) == limit or time.monotonic() - low.scanned_at < low.rest_s(found=bool(rows)):
                if rows:
                    low.move_to((rows[0].rank, rows[0].key), entries)
                return rows
            picked = {row.key for row in rows}
            more = [row for row in self._pick_from_start(queue, limit, low, past_breakers) if row.key not in picked]
            return sorted(rows + more[: limit - len(rows)])
        return self._pick_from_start(queue, limit, low, past_breakers)

    def _pick_from_start(self, queue: int, limit: int, low: LowWater, past_breakers: bool) -> list[ClaimedRow]:
        began, entries = time.monotonic(), low.entries
        rows = self._claim_any("claim_any", queue, *START_OF_QUEUE, limit, past_breakers)
        low.scanned_at = time.monotonic()
        low.costs.append(low.scanned_at - began)
        low.move_to((rows[0].rank, rows[0].key) if rows else START_OF_QUEUE, entries)
        return rows

    def _claim_any(
        self, statement: str, queue: int, rank: int, task: int, limit: int, past_breakers: bool
    ) -> list[ClaimedRow]:
        past = int(past_breakers)
        return self.query(statement, queue=queue, rank=rank, task=task, limit=limit, past_breakers=past)

    def _pick_kind(self, queue: int, kind: int, limit: int, past_breakers: bool) -> list[ClaimedRow]:
        return self.query("claim_kind", queue=queue, kind=kind, limit=limit, past_breakers=int(past_breakers))

    def _pick_kinds(self, queue: int, kinds: list[int], limit: int, past_breakers: bool) -> list[ClaimedRow]:
        """Merge the first tasks of all kinds without locks, then lock of each kind as many as the merge contains."""
        heads = sorted(
            (rank, task, kind)
            for kind in kinds
            for rank, task in self.query("heads_of_kind", queue=queue, kind=kind, limit=limit)
        )[:limit]
        rows: list[ClaimedRow] = []
        for kind in kinds:
            wanted = sum(1 for _, _, head_kind in heads if head_kind == kind)
            if wanted:
                rows += self._pick_kind(queue, kind, wanted, past_breakers)
        return sorted(rows)

    def claim_one(self, claim: LoneClaim) -> LoneTask | None:
        return None  # One that is alone in its transaction has a statement of its own: see fast_claim_postgres.py.

    def claim_full(self, claim: LoneClaim, limit: int) -> FullClaim | None:
        low = self._store.low_water.setdefault(claim.queue, LowWater())
        self.lower_marks()
        if not low.can_start_at_mark():
            return None
        entries = low.entries
        query = full_claim_query(claim, limit, low, self._test_time, self._now)
        # Of a full claim none is left, but all of them are if the transaction is rolled back.
        left = self._picked.setdefault(claim.queue, set())
        rows, full = full_claim_of(self._send(query))
        if full is None:
            self._head = claim.queue, rows, entries
            left.update([row.key for row in rows])
            return None
        first, self.wakes = rows[0], True
        low.move_to((first.rank, first.key), entries)
        self.not_before(full.at)
        event = {"key": first.key, "version": first.version, "actor": claim.actor, "at": full.at}
        self.written_row = self.written_row or row_of_move((TASK.claim,), event)
        return full

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        # Held until the end of the transaction, not of the session. Sent together with the next query, which takes its
        # snapshot only after it has the lock.
        self._pending.append((LOCK_REQUEST, {"request": request_name(worker, request_key), "ns": ns}))

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        self.written_row = self.written_row or row_of_submit(tasks)
        size = len(tasks["key"])
        if size < COPY_FROM:
            self.create("insert_member" if "stage" in tasks else "insert_task", tasks, events)
            self.batch("insert_ready", ready)
            return
        self.wakes = True
        blocks = self._next("onetray.event_id", -(-size // BLOCK))
        ids = [str(id_) for block in blocks for id_ in range(block, block + BLOCK)][:size]
        if tasks.get("lane") is None:
            tasks = {name: values for name, values in tasks.items() if name != "lane"}
        rows: list[tuple[str, Columns]] = [("task", {**tasks, "events": ids})]
        if ready["key"]:
            count_statement(self.work, "insert_ready", ready)
            self._entered.append(first_entry(ready))
            rows.insert(0, ("ready", {"task" if k == "key" else k: values for k, values in ready.items()}))
        self._copy(rows)
        for block, (_, part) in zip(blocks, slices_of(events, size), strict=True):
            self._record(rows_of(part), event=block)

    def create(self, statement: str, columns: Columns, events: Columns) -> None:
        size = len(columns["key"])
        for (_, part), (_, its_events) in zip(slices_of(columns, size), slices_of(events, size), strict=True):
            self.batch(statement, part)
            self._record(rows_of(its_events))

    def note(self, statement: str, columns: Columns) -> None:
        size = len(columns["key"])
        for n, part in slices_of(columns, size):
            self.batch(statement, part)
            self.query_later("insert_notes_of_flows", event=None, size=n, of_flows=int(statement == "insert_flow_note"))

    def record(self, event: Columns) -> None:
        self.wakes = True
        (block,) = self._next("onetray.event_id", 1)
        self._record(rows_of(event), event=block)

    def _copy(self, rows: list[tuple[str, Columns]]) -> None:
        texts = CopyBuffer()
        tables = ((table, *texts.of(columns)) for table, columns in rows)
        following = next(tables, None)
        while following is not None:
            table, names, text = following
            sql = f"COPY onetray.{table} ({', '.join(names)}) FROM STDIN"
            with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
                copy.write(text)
                # Format the next table while the server reads this one.
                following = next(tables, None)

    def new_keys(self, count: int) -> list[int]:
        return self._next("onetray.entity_key", count)

    def new_leases(self, count: int) -> list[int]:
        """Take lease keys from a stock that all transactions share: most claims need no round trip for them."""
        stock = self._store.lease_keys
        keys: list[int] = []
        while len(keys) < count:
            try:
                keys.append(stock.popleft())
            except IndexError:
                stock.extend(self._next("onetray.lease_key", LEASE_KEY_BLOCK))
        return keys

    def new_lanes(self, count: int) -> list[int]:
        return self._next("onetray.lane_key", count)

    def not_before(self, at: int) -> None:
        self._now = max(self.now, at)

    def _next(self, sequence: str, count: int) -> list[int]:
        ((numbers,),) = self._send((NEXT, {"sequence": sequence, "count": count}))
        return list(map(int, numbers.split(",")))

    def write_batch(self, id_: int, row: dict[str, Any], flows: list[int]) -> None:
        self._record([NewRow(0, row, flows)], event=id_)

    def fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        return self._send((PARAM.sub(r"%(\1)s", sql), params))

    def _send(self, last: Query | None = None) -> Rows:
        """Send the pending statements, and `last`, in one round trip. A move that changes too few rows fails there."""
        begins = self.xid is None
        todo, deferred = self._pending, self._deferred
        self._pending, self._deferred = [], []
        if begins:
            todo.insert(1, (PREPARE, {"now": self._test_time}))
        if last is not None:
            todo.append(last)
        if not todo:
            return []
        found = run_queries(self._connection, todo)
        if begins:
            ((self.xid, self._now, *_),) = found[1]
            failpoints.hit("begun")
        for index, statement, rows in deferred:
            rows += statement.rows(found[index + begins])
        return found[-1] if last is not None else []

    def lower_marks(self) -> None:
        """Make the next claim of a queue scan from the start if this transaction added a task before its mark."""
        if self._opened:
            # The queues of an opened stage's tasks are unknown here.
            for mark in list(self._store.low_water.values()):
                mark.reset()
        for ready in self._entered:
            for queue, rank, key in in_rows(ready, ("queue", "rank", "key")):
                if queue > 0:
                    self._store.entered(queue, rank, key)

    def unlock_picked(self, committed: bool) -> None:
        """Make the next claim find the tasks that this transaction locked and did not claim.

        Meanwhile claims of other threads have skipped them, and set the mark behind them.
        """
        for queue, left in self._picked.items():
            low = self._store.low_water.get(queue)
            if low is not None and (left or not committed):
                low.reset()

    def flush(self) -> None:
        """Send the pending statements, unless they can be sent together with the COMMIT."""
        begun = self.xid is not None
        if begun and failpoints.hook is None:
            return
        if begun or len(self._pending) > 1:
            self._send()

    def notify(self, news: str) -> None:
        """Notify other processes when this transaction is committed."""
        self._pending.append((NOTIFY, {"news": news}))

    def commit(self) -> None:
        """Send the pending statements and COMMIT. If one of them fails, PostgreSQL rolls back instead."""
        self._pending.append(("COMMIT", {}))
        self._send()


def request_name(worker: str, request_key: str) -> str:
    """What REQUEST_LOCK locks."""
    return f"onetray {worker} {request_key}"


def _with_lease(row: TaskRow, lease: LeaseNowRow | None) -> TaskRow:
    if lease is None:
        return row._replace(lease_expires_at=None, expiry_counts=None)
    return row._replace(lease_expires_at=lease.expires_at, expiry_counts=lease.expiry_counts)
