"""One transaction on PostgreSQL: statements in few round trips, moves that are checked, claims that wait for nobody.

Owns what happens between BEGIN and COMMIT. Connections, and what becomes of a lost COMMIT, are in postgres.py.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from onetray import failpoints
from onetray.domain.machine import Transition
from onetray.notify.new_work import NewWork, count_statement
from onetray.notify.postgres import NOTIFY
from onetray.store.base import WAKING, Columns, Rows, in_rows
from onetray.store.commit_check import WrittenRow, row_of_batch, row_of_move, row_of_submit
from onetray.store.interned import InternedNames
from onetray.store.pg_copy import CopyBuffer
from onetray.store.rows import ClaimedRow, FlowRow, TaskRow
from onetray.store.sql_template import POSTGRES, WORDS, Statement

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

    from onetray.store.postgres import PostgresStore

COPY_FROM = 50
"""From this many tasks on COPY is faster than an INSERT of arrays."""
LEASES_AT_ONCE = 100
AWAY = ("57P01", "57P02", "57P03", "25006")
"""The server goes down, comes up, or has become a standby that may only be read."""
TOO_FEW = "fewer rows changed than were decided about; all of it was rolled back"
CLOCK = WORDS[POSTGRES]["clock"].replace(":now", "%(now)s")
# Every statement of a transaction finds its rows through an index. Without statistics, or with old ones, the planner
# may prefer to read a whole table, or to sort all that is claimable.
_BY_INDEX = ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit")
)
# So the plan is the same for all batches. Left to choose, PostgreSQL would plan some statements anew each time.
_PLANNED_ONCE = "set_config('plan_cache_mode', 'force_generic_plan', true)"
_BEGIN = f"SELECT pg_current_xact_id()::text, {CLOCK}, {_BY_INDEX}, {_PLANNED_ONCE}"
_START = -(2**31), 0
RECENT = 100
Query = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class LowWater:
    """Where a queue's claims may start to look.

    While an old snapshot is open, deleted rows stay in the index and every claim from the start has to step over
    them. What was found first by the last claim has nothing claimable before it, but what came there since.
    """

    rank: int = _START[0]
    task: int = _START[1]
    looked_at: float = field(default=float("-inf"))
    cost_s: float = 0.0
    entries: int = 0
    """How many tasks have entered the queue from this process."""
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The last of them."""

    def enter(self, rank: int, task: int) -> None:
        """A task is in the queue. One before the mark makes the next claim look from the start."""
        self.recent.append((rank, task))
        self.entries += 1
        if (rank, task) < (self.rank, self.task):
            self.reset()

    def move_to(self, place: tuple[int, int], entries: int) -> None:
        """Set the mark, before all that has entered since there were so many entries: that look has not seen it."""
        missed = self.entries - entries
        known = self.recent.copy() if missed <= RECENT else [(self.rank, self.task)]
        self.rank, self.task = min([place, *(known if missed else ())])

    def reset(self) -> None:
        self.looked_at = float("-inf")

    def may_start_here(self) -> bool:
        """A look from the start is due every second, less often when it is slow."""
        return time.monotonic() - self.looked_at < max(1.0, self.rest_s())

    def rest_s(self) -> float:
        """How long to leave it after a look: it may take a fortieth of the time."""
        return min(10.0, 40 * self.cost_s)


class PostgresTx:
    def __init__(self, connection: Connection[Any], store: PostgresStore) -> None:
        self._connection = connection
        self._store = store
        self._statements = store.statements
        self.names: InternedNames = store.names
        self.mixed = store.mixed
        self._test_time = store.clock.now() if store.clock else None
        self._pending: list[Query] = [("BEGIN", {})]
        self._deferred: list[tuple[int, Statement, Rows]] = []
        self._entered: list[Columns] = []
        self._opened = False
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
        fetched = self._send((statement.sql, bind_postgres(statement, params)), returns=statement.returns)
        rows = statement.rows(fetched)
        if name == "open_ready":
            self._opened = True
            self.work.count([queue for (queue,) in rows], 0)
        return rows

    def ask(self, name: str, /, **params: Any) -> Rows:
        statement = self._statements.by_name[name]
        params.setdefault("now", self._test_time)
        answer: Rows = []
        self._deferred.append((len(self._pending), statement, answer))
        self._pending.append((statement.sql, bind_postgres(statement, params)))
        return answer

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        statement = self._statements.for_batch(name, columns)
        self.wakes |= name in WAKING
        count_statement(self.work, name, columns)
        self.written_row = self.written_row or row_of_batch(name, columns)
        if name in ("insert_ready", "promote_ready"):
            self._entered.append(columns)
        query = statement.sql, bind_postgres(statement, {"now": self._test_time, **columns, **params})
        if statement.returns:
            return statement.rows(self._send(query))
        self._pending.append(query)
        return []

    def move(self, hops: tuple[Transition, ...], columns: Columns, held: bool = False) -> None:
        move = self._statements.move(hops, columns, held)
        self.wakes = True
        failpoints.hit("moving")
        self.written_row = self.written_row or row_of_move(columns)
        params = bind_postgres(move.update, columns)
        self._pending.append((move.update.sql, {**params, "expected": len(columns["key"])}))
        if failpoints.hook is not None:
            self._send()
        failpoints.hit("updated")
        failpoints.hit("moved")

    def lock(self, keys: list[int]) -> list[TaskRow]:
        found = self.query("lock_tasks", keys=keys)
        if found:
            # Never back: what was due when it was looked up is due when it is decided.
            self._now = max(self._now or 0, found[-1].seen_at)
        rows = self._with_leases_as_they_are(found)
        failpoints.hit("locked")
        return rows

    def _with_leases_as_they_are(self, rows: list[TaskRow]) -> list[TaskRow]:
        """Read expiries again where they decide something.

        A statement that waits for a task's lock still sees the leases of before it waited: without the one of a
        claim, or not yet renewed. An expiry only moves on, so what has not passed needs no second look.
        """
        old = {r.lease for r in rows if r.lease is not None and (r.lease_expires_at or 0) < self.now}
        if not old:
            return rows
        now: dict[int | None, int] = dict(self.query("expiries", keys=sorted(old)))
        return [r._replace(lease_expires_at=now.get(r.lease)) if r.lease in old else r for r in rows]

    def lock_flows(self, keys: list[int]) -> list[FlowRow]:
        found = self.query("lock_flows", keys=keys)
        if found:
            self._now = max(self._now or 0, found[-1].seen_at)
        failpoints.hit("flows_locked")
        return found

    def pick(self, queue: int, kinds: list[int] | None, limit: int, past_breakers: bool = False) -> list[ClaimedRow]:
        if kinds is None:
            found = self._pick_any(queue, limit)
        elif len(kinds) == 1:
            found = self._pick_kind(queue, kinds[0], limit, past_breakers)
        else:
            found = self._pick_kinds(queue, kinds, limit, past_breakers)
        if found:
            # The latest: the last row need not be of the last look.
            self._now = max(self.now, *(row.seen_at for row in found))
        return found

    def _pick_any(self, queue: int, limit: int) -> list[ClaimedRow]:
        low = self._store.low_water.setdefault(queue, LowWater())
        # What this transaction itself has put before the mark counts too.
        self.lower_marks()
        if low.may_start_here():
            entries = low.entries
            found = self._claim_any(queue, low.rank, low.task, limit)
            # Short of the limit there may be something before the mark: a late commit, a requeue, a higher
            # priority. It is looked for at once unless looking was slow.
            if len(found) == limit or time.monotonic() - low.looked_at < low.rest_s():
                if found:
                    low.move_to((found[0].rank, found[0].key), entries)
                return found
            already = {row.key for row in found}
            more = [row for row in self._pick_from_start(queue, limit, low) if row.key not in already]
            return sorted(found + more[: limit - len(found)])
        return self._pick_from_start(queue, limit, low)

    def _pick_from_start(self, queue: int, limit: int, low: LowWater) -> list[ClaimedRow]:
        began, entries = time.monotonic(), low.entries
        found = self._claim_any(queue, *_START, limit)
        low.looked_at = time.monotonic()
        low.cost_s = low.looked_at - began
        low.move_to((found[0].rank, found[0].key) if found else _START, entries)
        return found

    def _claim_any(self, queue: int, rank: int, task: int, limit: int) -> list[ClaimedRow]:
        return self.query("claim_any", queue=queue, rank=rank, task=task, limit=limit, past_breakers=0)

    def _pick_kind(self, queue: int, kind: int, limit: int, past_breakers: bool) -> list[ClaimedRow]:
        return self.query("claim_kind", queue=queue, kind=kind, limit=limit, past_breakers=int(past_breakers))

    def _pick_kinds(self, queue: int, kinds: list[int], limit: int, past_breakers: bool) -> list[ClaimedRow]:
        """Merge the kinds' heads without locking, then lock from each kind as many as it has in the merge."""
        heads = sorted(
            (rank, task, kind)
            for kind in kinds
            for rank, task in self.query("heads_of_kind", queue=queue, kind=kind, limit=limit)
        )[:limit]
        found: list[ClaimedRow] = []
        for kind in kinds:
            wanted = sum(1 for _, _, of_kind in heads if of_kind == kind)
            if wanted:
                found += self._pick_kind(queue, kind, wanted, past_breakers)
        return sorted(found)

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        # Until the end of the transaction, so that it is no state of the session. Sent with the query that follows,
        # which still takes its snapshot after the lock is held.
        sql = "SELECT pg_advisory_xact_lock(hashtextextended(%(request)s, %(ns)s))"
        self._pending.append((sql, {"request": f"onetray {worker} {request_key}", "ns": ns}))

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        self.written_row = self.written_row or row_of_submit(tasks)
        if len(tasks["key"]) < COPY_FROM:
            self.batch("insert_member" if "stage" in tasks else "insert_task", tasks)
            self.batch("insert_ready", ready)
            self.batch("insert_event", events)
            return
        self._send()
        self.wakes = True
        rows = [("event", events), ("task", tasks)]
        if ready["key"]:
            self.work.count(ready["queue"], len(ready["key"]))
            self._entered.append(_least(ready))
            rows.insert(0, ("ready", {"task" if k == "key" else k: values for k, values in ready.items()}))
        self._copy(rows)

    def _copy(self, rows: list[tuple[str, Columns]]) -> None:
        texts = CopyBuffer()
        tables = ((table, *texts.of(columns)) for table, columns in rows)
        following = next(tables, None)
        while following is not None:
            table, names, text = following
            sql = f"COPY onetray.{table} ({', '.join(names)}) FROM STDIN"
            with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
                copy.write(text)
                # While the server reads this one.
                following = next(tables, None)

    def new_keys(self, count: int) -> list[int]:
        return self._next("onetray.entity_key", count)

    def new_leases(self, count: int) -> list[int]:
        """Lease keys come from a stock that all transactions share: most claims need no trip for them."""
        stock = self._store.lease_keys
        taken: list[int] = []
        while len(taken) < count:
            try:
                taken.append(stock.popleft())
            except IndexError:
                stock.extend(self._next("onetray.lease_key", LEASES_AT_ONCE))
        return taken

    def _next(self, sequence: str, count: int) -> list[int]:
        # As one text: a row for each would cost more than the numbers themselves.
        sql = "SELECT string_agg(nextval(%(sequence)s)::text, ',') FROM generate_series(1, %(count)s)"
        ((numbers,),) = self._send((sql, {"sequence": sequence, "count": count}))
        return list(map(int, numbers.split(",")))

    def fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        return self._send((sql, params))

    def _send(self, last: Query | None = None, returns: bool = True) -> Rows:
        """Send what is pending, and one more, in one round trip. A move that moves too few fails there."""
        begins = self.xid is None
        todo, deferred = self._pending, self._deferred
        self._pending, self._deferred = [], []
        if begins:
            # The number comes before the first nextval of an event id: the feed's barrier relies on it.
            todo.insert(1, (_BEGIN, {"now": self._test_time}))
        if last is not None:
            todo.append(last)
        if not todo:
            return []
        if len(todo) == 1:
            cursors = [self._connection.execute(todo[0][0], todo[0][1])]
        else:
            cursors = _together(self._connection, todo)
        if begins:
            ((self.xid, self._now, *_),) = cursors[1].fetchall()
            failpoints.hit("begun")
        for place, statement, answer in deferred:
            answer += statement.rows(cursors[place + begins].fetchall())
        return cursors[-1].fetchall() if last is not None and returns else []

    def lower_marks(self) -> None:
        """What entered a queue before its mark makes the next claim look from the start."""
        if self._opened:
            # Which queues a whole stage went to is not known here.
            for mark in list(self._store.low_water.values()):
                mark.reset()
        for ready in self._entered:
            for queue, rank, key in in_rows(ready, ("queue", "rank", "key")):
                self._store.entered(queue, rank, key)

    def flush(self) -> None:
        """Send what is pending, if it has to be sent before the COMMIT rather than with it."""
        begun = self.xid is not None
        if begun and failpoints.hook is None:
            return
        if begun or len(self._pending) > 1:
            self._send()

    def notify(self, news: str) -> None:
        """Notify other processes when this transaction is committed."""
        self._pending.append((NOTIFY, {"news": news}))

    def commit(self) -> None:
        """COMMIT, after what is still pending. A move that does not move what it should makes it a ROLLBACK."""
        self._pending.append(("COMMIT", {}))
        self._send()


def is_refused(e: psycopg.Error) -> bool:
    """Whether the server has refused a statement, and with it all that was sent after it, a COMMIT too.

    It has not when the connection is gone. A pooler says so in the name of the server, as a connection exception (08).
    """
    fatal = e.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return e.sqlstate is not None and not fatal and e.sqlstate not in AWAY and not e.sqlstate.startswith("08")


def _together(connection: Connection[Any], queries: list[Query]) -> list[Cursor[Any]]:
    """Run statements in one round trip. The first error is raised; what was sent after it did not run."""
    refused: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                return [connection.execute(sql, params) for sql, params in queries]
            except psycopg.Error as e:
                # It came while more was being sent. Let out of the pipeline, psycopg would log what it ends.
                refused = e
    except psycopg.Error as e:
        raise refused or e from None
    assert refused is not None
    raise refused


def _least(ready: Columns) -> Columns:
    """Of rows that enter one queue with one rank, the first: it alone can be the one before a mark."""
    if isinstance(ready["queue"], list) or isinstance(ready["rank"], list):
        return ready
    return {"queue": ready["queue"], "rank": ready["rank"], "key": [min(ready["key"])]}


def bind_postgres(statement: Statement, params: Columns) -> dict[str, Any]:
    """The parameters, with lists of numbers as PostgreSQL writes them: psycopg takes ten times as long for that."""
    arrays = {name: _array(params[name]) for name in statement.numbers}
    return {**params, **arrays}


def _array(numbers: list[int | None]) -> str:
    return "{" + ",".join(map(str, numbers)).replace("None", "NULL") + "}"
