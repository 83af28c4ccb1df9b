"""PostgreSQL 14 or later, through psycopg 3: many writers, guarded by row locks.

Owns connections, the pipeline, COPY, and the resolution of a COMMIT whose answer was lost.
Keeps no session state: every transaction may run on another server connection (pgbouncer in transaction mode).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from onetray import points
from onetray.clock import Clock
from onetray.errors import GuardFailed, MissingExtra, OutcomeUnknown, StoreError, Unavailable
from onetray.machine import Transition
from onetray.model import Row
from onetray.store.barrier import Barrier
from onetray.store.base import RINGS, Columns, Rows, Store, in_rows
from onetray.store.names import Names
from onetray.store.sqltext import PARAM, POSTGRES, WORDS, Statement, migration, migrations
from onetray.store.witness import Witness, of_batch, of_move, of_submit, took_effect

try:
    import psycopg
    from psycopg import Connection
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

    from onetray.store.listen import CHANNEL, Listener
except ImportError as e:  # pragma: no cover
    raise MissingExtra("PostgreSQL needs psycopg: pip install 'onetray[postgres]'") from e

COPY_FROM = 50
"""From this many tasks on COPY is faster than an INSERT of arrays."""
LEASES_AT_ONCE = 100
_AWAY = ("57P01", "57P02", "57P03", "25006")
"""The server goes down, comes up, or has become a standby that may only be read."""
MIGRATION_LOCK = 7_136_211_505
_CLOCK = WORDS[POSTGRES]["clock"].replace(":now", "%(now)s")
# Every statement of a transaction finds its rows through an index. Without statistics, or with old ones, the planner
# may prefer to read a whole table, or to sort all that is claimable.
_BY_INDEX = ", ".join(
    f"set_config('{name}', 'off', true)"
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort", "jit")
)
_BEGIN = f"SELECT pg_current_xact_id()::text, {_CLOCK}, {_BY_INDEX}"
_START = -(2**31), 0
WAIT_S = 0.02
"""How long a reader of the feed waits for writers that are about to commit."""
TAIL_WAIT_S = 1.0


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

    def reset(self) -> None:
        self.looked_at = float("-inf")

    def may_start_here(self) -> bool:
        """A look from the start is due every second, less often when it is slow."""
        return time.monotonic() - self.looked_at < max(1.0, self.rest_s())

    def rest_s(self) -> float:
        """How long to leave it after a look: it may take a twentieth of the time."""
        return min(5.0, 20 * self.cost_s)


class PostgresTx:
    def __init__(self, connection: Connection[Any], store: PostgresStore) -> None:
        self._connection = connection
        self._store = store
        self._book = store.book
        self.names: Names = store.names
        self._given = store.clock.now() if store.clock else None
        self._pending: list[tuple[str, dict[str, Any], int | None]] = [("BEGIN", {}, None)]
        self._entered: list[Columns] = []
        self._now: int | None = None
        self.xid: str | None = None
        self.rings = False
        self.witness: Witness | None = None

    @property
    def now(self) -> int:
        if self._now is None:
            self._send()
        assert self._now is not None
        return self._now

    def query(self, name: str, /, **params: Any) -> Rows:
        statement = self._book.statements[name]
        self.rings |= name in RINGS
        params.setdefault("now", self._given)
        return self._send((statement.sql, bound(statement, params), None), returns=statement.returns)

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        statement = self._book.statement(name, columns)
        self.rings |= name in RINGS
        self.witness = self.witness or of_batch(name, columns)
        if name in ("insert_ready", "promote_ready"):
            self._entered.append(columns)
        given = bound(statement, {"now": self._given, **columns, **params})
        if statement.returns:
            return self._send((statement.sql, given, None))
        self._pending.append((statement.sql, given, None))
        return []

    def move(self, hops: tuple[Transition, ...], columns: Columns) -> None:
        move = self._book.move(hops, columns)
        self.rings = True
        points.hit("moving")
        self.witness = self.witness or of_move(columns)
        self._pending.append((move.update.sql, bound(move.update, columns), len(columns["key"])))
        if points.hook is not None:
            self._send()
        points.hit("updated")
        points.hit("moved")

    def lock(self, keys: list[int]) -> list[Row]:
        found = list(map(Row._make, self.query("lock_tasks", keys=keys)))
        if found:
            # Never back: what was due when it was looked up is due when it is decided.
            self._now = max(self._now or 0, found[-1].seen_at)
        rows = self._with_leases_as_they_are(found)
        points.hit("locked")
        return rows

    def _with_leases_as_they_are(self, rows: list[Row]) -> list[Row]:
        """Read expiries again where they decide something.

        A statement that waits for a task's lock still sees the leases of before it waited: without the one of a
        claim, or not yet renewed. An expiry only moves on, so what has not passed needs no second look.
        """
        old = {r.lease for r in rows if r.lease is not None and (r.lease_expires_at or 0) < self.now}
        if not old:
            return rows
        now: dict[int | None, int] = dict(self.query("expiries", keys=sorted(old)))
        return [r._replace(lease_expires_at=now.get(r.lease)) if r.lease in old else r for r in rows]

    def pick(self, queue: int, kinds: list[int] | None, limit: int) -> Rows:
        if kinds is None:
            found = self._pick_any(queue, limit)
        elif len(kinds) == 1:
            found = self.query("claim_kind", queue=queue, kind=kinds[0], limit=limit)
        else:
            found = self._pick_kinds(queue, kinds, limit)
        if found:
            self._now = max(self.now, found[-1][-1])
        return found

    def _pick_any(self, queue: int, limit: int) -> Rows:
        low = self._store.low_water.setdefault(queue, LowWater())
        # What this transaction itself has put before the mark counts too.
        self.lower_marks()
        if low.may_start_here():
            found = self.query("claim_any", queue=queue, rank=low.rank, task=low.task, limit=limit)
            # Short of the limit there may be something before the mark: a late commit, a requeue, a higher
            # priority. It is looked for at once unless looking was slow.
            if len(found) == limit or time.monotonic() - low.looked_at < low.rest_s():
                low.rank, low.task = found[0][:2] if found else (low.rank, low.task)
                return found
            already = {r[1] for r in found}
            more = [r for r in self._pick_from_start(queue, limit, low) if r[1] not in already]
            return sorted(found + more[: limit - len(found)])
        return self._pick_from_start(queue, limit, low)

    def _pick_from_start(self, queue: int, limit: int, low: LowWater) -> Rows:
        began = time.monotonic()
        found = self.query("claim_any", queue=queue, rank=_START[0], task=_START[1], limit=limit)
        low.looked_at = time.monotonic()
        low.cost_s = low.looked_at - began
        low.rank, low.task = (found[0][0], found[0][1]) if found else _START
        return found

    def _pick_kinds(self, queue: int, kinds: list[int], limit: int) -> Rows:
        """Merge the kinds' heads without locking, then lock from each kind as many as it has in the merge."""
        heads = sorted(
            (rank, task, kind)
            for kind in kinds
            for rank, task in self.query("heads_of_kind", queue=queue, kind=kind, limit=limit)
        )[:limit]
        found: Rows = []
        for kind in kinds:
            wanted = sum(1 for head in heads if head[2] == kind)
            if wanted:
                found += self.query("claim_kind", queue=queue, kind=kind, limit=wanted)
        return sorted(found)

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        # Until the end of the transaction, so that it is no state of the session.
        sql = "SELECT pg_advisory_xact_lock(hashtextextended(%(request)s, %(ns)s))"
        self._send((sql, {"request": f"onetray {worker} {request_key}", "ns": ns}, None))

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        self.witness = self.witness or of_submit(tasks)
        if len(tasks["key"]) < COPY_FROM:
            self.batch("insert_task", tasks)
            self.batch("insert_ready", ready)
            self.batch("insert_event", events)
            return
        self._send()
        self.rings = True
        self._copy("task", tasks)
        if ready["key"]:
            self._entered.append(ready)
            self._copy("ready", {"task" if k == "key" else k: values for k, values in ready.items()})
        self._copy("event", events)

    def _copy(self, table: str, columns: Columns) -> None:
        filled = [name for name, values in columns.items() if values is not None]
        sql = f"COPY onetray.{table} ({', '.join(filled)}) FROM STDIN"
        with self._connection.cursor() as cursor, cursor.copy(sql) as copy:
            write = copy.write_row
            for row in in_rows(columns, filled):
                write(row)

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
        sql = "SELECT nextval(%(sequence)s) FROM generate_series(1, %(count)s)"
        return [k for (k,) in self._send((sql, {"sequence": sequence, "count": count}, None))]

    def fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        return self._send((sql, params, None))

    def _send(self, last: tuple[str, dict[str, Any], int | None] | None = None, returns: bool = True) -> Rows:
        """Send what is pending, and one more, in one round trip; check that every move moved what it should."""
        begins = self.xid is None
        todo = self._pending
        self._pending = []
        if begins:
            # The number comes before the first nextval of an event id: the feed's barrier relies on it.
            todo.insert(1, (_BEGIN, {"now": self._given}, None))
        if last is not None:
            todo.append(last)
        if not todo:
            return []
        if len(todo) == 1:
            cursors = [self._connection.execute(todo[0][0], todo[0][1])]
        else:
            with self._connection.pipeline():
                cursors = [self._connection.execute(sql, params) for sql, params, _ in todo]
        if begins:
            self.xid, self._now, *_ = cursors[1].fetchall()[0]
            points.hit("begun")
        for (sql, _, expected), cursor in zip(todo, cursors, strict=True):
            if expected is not None:
                moved = cursor.fetchall()[0][0]
                if moved != expected:
                    raise GuardFailed(f"moved {moved} of {expected} tasks: {sql[:60]}")
        return cursors[-1].fetchall() if last is not None and returns else []

    def lower_marks(self) -> None:
        """What entered a queue before its mark makes the next claim look from the start."""
        for ready in self._entered:
            for queue, rank, key in in_rows(ready, ("queue", "rank", "key")):
                low = self._store.low_water.get(queue)
                if low is not None and (rank, key) < (low.rank, low.task):
                    low.reset()

    def flush(self) -> None:
        if self.xid is not None or len(self._pending) > 1:
            self._send()


def bound(statement: Statement, params: Columns) -> dict[str, Any]:
    """The parameters, with lists of numbers as PostgreSQL writes them: psycopg takes ten times as long for that."""
    arrays = {name: _array(params[name]) for name in statement.numbers}
    return {**params, **arrays}


def _array(numbers: list[int | None]) -> str:
    return "{" + ",".join(map(str, numbers)).replace("None", "NULL") + "}"


class PostgresSnapshot:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def select(self, sql: str, /) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.encode()).fetchall()


class PostgresStore(Store):
    dialect = POSTGRES
    writers = 3
    tells = True

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        pooler: bool = False,
        connections: int = 8,
        patience_s: float = 60.0,
        reset: Callable[[Connection[Any]], None] | None = None,
    ) -> None:
        self.url, self._pooler, self.patience_s = url, pooler, patience_s
        self.low_water: dict[int, LowWater] = {}
        self.lease_keys: deque[int] = deque()
        self._local = threading.local()
        # Prepared at its first use or never. One that is to be prepared later, in a pipeline that fails before it,
        # is remembered by psycopg as prepared without being so, and fails from then on.
        prepare = None if pooler else 0
        kwargs = {
            "autocommit": True, "connect_timeout": 10, "application_name": "onetray", "prepare_threshold": prepare,
        }  # fmt: skip
        try:
            psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as e:
            raise StoreError(f"the database URL cannot be read: {e}") from e
        self._pool: ConnectionPool[Connection[Any]] = ConnectionPool(
            url, min_size=1, max_size=connections, kwargs=kwargs, open=False, timeout=min(10.0, patience_s),
            # The pool waits longer after each failure: it starts afresh before its waits outlast our patience.
            reconnect_timeout=15.0, name="onetray", reset=reset,
        )  # fmt: skip
        self._barrier = Barrier(self._fetch)
        self._pool.open()
        try:
            self._pool.wait(timeout=min(15.0, patience_s))
        except PoolTimeout as e:
            self._pool.close()
            raise Unavailable(f"PostgreSQL does not answer at {_without_password(url)}: {e}") from e
        super().__init__(clock)

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        try:
            with self._pool.connection() as connection:
                yield connection
        except PoolClosed as e:
            raise Unavailable("the store is closed") from e
        except PoolTimeout as e:
            raise Unavailable(f"no connection to PostgreSQL could be had: {e}") from e

    @contextmanager
    def transaction(self) -> Iterator[PostgresTx]:
        with self._connection() as connection:
            tx = self._local.tx = PostgresTx(connection, self)
            try:
                yield tx
                tx.flush()
            except BaseException as e:
                _roll_back(connection)
                if _lost(connection, e):
                    # A server that crashed may hand the numbers of the stock out again.
                    self.lease_keys.clear()
                    raise Unavailable(f"the connection to PostgreSQL broke: {e}") from e
                raise
            finally:
                self._local.tx = None
            if tx.xid is None:
                return
            points.hit("committing")
            try:
                connection.execute("COMMIT")
                committed = True
            except psycopg.OperationalError as e:
                if not _lost(connection, e):
                    raise
                self.lease_keys.clear()
                committed = False
        if not committed and not self._took_effect(tx.xid, tx.witness):
            raise Unavailable("the connection to PostgreSQL broke before COMMIT took effect; nothing was written")
        tx.lower_marks()
        points.hit("committed")
        if tx.rings:
            self.announce()

    def _took_effect(self, xid: str, witness: Witness | None) -> bool:
        """Ask the database what became of a transaction whose COMMIT was not answered."""
        until = time.monotonic() + self.patience_s
        while True:
            with suppress(psycopg.OperationalError, Unavailable), self._connection() as connection:
                answer = took_effect(connection, xid, witness)
                if answer is not None:
                    return answer
            if time.monotonic() > until:
                raise OutcomeUnknown(f"transaction {xid} could not be asked about", xid=xid)
            time.sleep(0.05)

    def read(self, name: str, /, **params: Any) -> Rows:
        statement = self.book.statements[name]
        params.setdefault("now", self.clock.now() if self.clock else None)
        return self._fetch(statement.sql, bound(statement, params))

    def read_sql(self, sql: str, /, **params: Any) -> Rows:
        return self._fetch(PARAM.sub(r"%(\1)s", sql.replace("%", "%%")), params)

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        try:
            with self._connection() as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                try:
                    # Few queries over whole tables: sort in memory what fits, and compile nothing.
                    connection.execute("SET LOCAL work_mem = '64MB'; SET LOCAL jit = off", prepare=False)
                    yield PostgresSnapshot(connection)
                finally:
                    _roll_back(connection)
        except psycopg.OperationalError as e:
            raise Unavailable(f"PostgreSQL did not answer: {e}") from e

    def read_within(self, name: str, /) -> Rows:
        tx: PostgresTx | None = getattr(self._local, "tx", None)
        # A second connection for a thread that holds one already could starve the pool.
        return self.read(name) if tx is None else tx.query(name)

    def _fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        try:
            with self._connection() as connection:
                return connection.execute(sql, params).fetchall()
        except psycopg.OperationalError as e:
            raise Unavailable(f"PostgreSQL did not answer: {e}") from e

    def now(self) -> int:
        return int(self._fetch(f"SELECT {_CLOCK}", {"now": self.clock.now() if self.clock else None})[0][0])

    def version(self) -> int:
        there = self._fetch("SELECT to_regclass('onetray.migration')", {})[0][0]
        return int(self._fetch("SELECT coalesce(max(number), 0) FROM onetray.migration", {})[0][0]) if there else 0

    def migrate(self) -> list[int]:
        applied = []
        for number in migrations(POSTGRES):
            with self._connection() as connection, connection.transaction():
                # Held to the end of this transaction: the next one to migrate waits, then finds it done.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
                # Rather give up than queue behind a long reader and stop every worker meanwhile.
                connection.execute("SET LOCAL lock_timeout = '5s'")
                connection.execute("CREATE SCHEMA IF NOT EXISTS onetray")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS onetray.migration "
                    "(number integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
                )
                done = connection.execute("SELECT 1 FROM onetray.migration WHERE number = %s", (number,)).fetchone()
                if done is None:
                    connection.execute(migration(POSTGRES, number).encode(), prepare=False)
                    connection.execute("INSERT INTO onetray.migration (number) VALUES (%s)", (number,))
                    applied.append(number)
        return applied

    def upto(self, needed: int = 2**63) -> int:
        passed = self._barrier.passed
        return passed if passed >= needed else self._barrier.upto(WAIT_S)

    def tail(self) -> int:
        passed = self._barrier.upto(TAIL_WAIT_S)
        if passed or not self._barrier.pending:
            return passed
        # A writer hangs, and this process has never read as far as it. Not the whole log again, then, but from what
        # can be seen now.
        return int(self.read("last_event_id")[0][0])

    @property
    def held_up(self) -> bool:
        return self._barrier.pending

    def tell(self) -> None:
        # In a transaction of its own: in the writer's it would make all commits take turns.
        with self._pool.connection(timeout=2.0) as connection:
            connection.execute(f"NOTIFY {CHANNEL}")

    def ear(self) -> Listener | None:
        return None if self._pooler else Listener(self.url)

    def close(self) -> None:
        self._pool.close()


def _roll_back(connection: Connection[Any]) -> None:
    # Not as a statement: statements that were prepared after the error, in the same pipeline, are known here and
    # not to the server. This way psycopg forgets them.
    with suppress(psycopg.Error):
        connection.rollback()


def _lost(connection: Connection[Any], error: BaseException) -> bool:
    """Whether the connection is gone, rather than a statement refused."""
    if isinstance(error, psycopg.Error) and error.sqlstate in _AWAY:
        return True
    return isinstance(error, psycopg.Error) and (connection.closed or connection.broken)


def _without_password(url: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
