"""PostgreSQL 14 or later, through psycopg 3: many writers, guarded by row locks.

Owns connections, and resolves a COMMIT whose answer was lost. Statements run in postgres_tx.py. Keeps no session state:
each transaction may run on another server connection (pgbouncer in transaction mode).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from onetray import failpoints
from onetray.config import hide_password
from onetray.domain.clock import Clock
from onetray.domain.errors import GuardFailed, MissingExtra, OutcomeUnknown, Unavailable
from onetray.notify.new_work import NewWork, format_new_work
from onetray.store import old_events
from onetray.store.base import Columns, LoneClaim, LoneTask, Rows, Store, Tx
from onetray.store.commit_check import CommitOutcome, ServerRun, outcome_of
from onetray.store.feed_barrier import Barrier
from onetray.store.low_water import LowWater
from onetray.store.retry_transaction import MayBeRepeated, retry_transaction
from onetray.store.schema import MIGRATION_LOCK, known_version, migration, newer_migrations
from onetray.store.sql_template import PARAM, POSTGRES

try:
    import psycopg
    from psycopg import Connection
    from psycopg.rows import dict_row
    from psycopg_pool import PoolClosed, PoolTimeout

    from onetray.notify.postgres import NOTIFY, PostgresListener
    from onetray.store.caller_connection import IDENTITY, CallerTransaction, caller_transaction
    from onetray.store.connect_errors import FIRST_CONNECT_S, connect_error, may_pass, nobody_listens, url_parts
    from onetray.store.fast_claim_postgres import claim_one_postgres
    from onetray.store.fast_submit_postgres import submit_one_postgres, submit_several_postgres
    from onetray.store.pg_connections import ServerConnection, WarmPool
    from onetray.store.pg_pipeline import PreparedNames, bind_postgres, is_refused, run_queries
    from onetray.store.postgres_tx import CLOCK, TOO_FEW, PostgresTx
    from onetray.store.replication import Warnings, confirmed
except ImportError as e:  # pragma: no cover
    raise MissingExtra("PostgreSQL needs psycopg: pip install 'onetray[postgres]'") from e

_UNCONFIRMED = (
    "the transaction is committed on the primary, but no standby has confirmed it: a failover may lose it. Restart the "
    "standby, or remove it from synchronous_standby_names; then check whether the job exists before you call again"
)
_UNANSWERED = (
    "the connection to PostgreSQL broke during COMMIT, and the server has been unreachable since: check whether the "
    "job exists before you call again, or repeat a submit with the same idempotency key"
)
_WHOLE_TABLES = "SET LOCAL work_mem = '64MB'; SET LOCAL jit = off; SET LOCAL enable_nestloop = off"
WAIT_S = 0.02
"""How long a reader of the feed waits for open transactions that have written events."""
TAIL_WAIT_S = 1.0
CONNECT_S = 10.0
OPEN_S, OPEN_POOLER_S = 15.0, 30.0
"""How long to wait for an unreachable server when the store opens. A pooler may retry only every 15 s."""
QUIET_S = 0.05
"""If the last notification is older than this, a commit notifies other processes in its own transaction."""


class PostgresSnapshot:
    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def select(self, sql: str, /) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.encode()).fetchall()

    def decode_events(self, sql: str, /) -> None:
        """Does nothing: a query decodes them at its start."""


class PostgresStore(Store):
    dialect = POSTGRES
    writers = 3
    notifies_others = True
    # Each notification is a transaction of its own.
    notify_every_s = 0.05

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
        self.url, self.pooler, self.patience_s = url, pooler, patience_s
        self.address = hide_password(url)
        # Behind a pooler it is unknown whether the backend that was writing is gone.
        self.takes_one = self.takes_several = self.claims_one = not pooler
        self._identity: tuple[Any, ...] | None = None
        self._notified_at = float("-inf")
        self.low_water: dict[int, LowWater] = {}
        self.lease_keys: deque[int] = deque()
        self._local = threading.local()
        # pg_pipeline.py prepares statements. If psycopg did so, too, it would deallocate all of them after a rollback.
        kwargs: dict[str, Any] = {"autocommit": True, "application_name": "onetray", "prepare_threshold": None}
        has_timeout = "connect_timeout" in url_parts(url)
        if not has_timeout:
            kwargs["connect_timeout"] = int(CONNECT_S)
        self._pool = WarmPool(
            url, connection_class=ServerConnection, configure=self._configure, kwargs=kwargs, open=False,
            min_size=1, max_size=connections, timeout=min(CONNECT_S, patience_s),
            # The pool waits longer after each failure. This resets it before a wait becomes longer than patience_s.
            reconnect_timeout=15.0, name="onetray", reset=reset,
        )  # fmt: skip
        self._pool.first_connect_s = None if has_timeout else FIRST_CONNECT_S
        self._barrier = Barrier(self._fetch)
        self._pool.open()
        try:
            self._connect(min(OPEN_POOLER_S if pooler else OPEN_S, patience_s))
        except BaseException:
            self._pool.close()
            raise
        super().__init__(clock)

    def _configure(self, connection: ServerConnection) -> None:
        connection.warnings = Warnings()
        connection.add_notice_handler(connection.warnings.note)
        connection.run = ServerRun.of(connection)
        if not self.pooler:
            connection.prepared_names = PreparedNames()

    def _connect(self, patience_s: float) -> None:
        """Wait for the first connection. Raises why there is none: at once, unless the server may accept one soon."""
        until, was_there = time.monotonic() + patience_s, False
        while True:
            # The pool runs a statement on it: a pooler accepts connections while the server is unreachable.
            was_tried = self._pool.tried.wait(max(0.0, until - time.monotonic()))
            self._pool.tried.clear()
            error = self._pool.last_error
            if was_tried and error is None:
                return
            was_there = was_there or may_pass(error, self.url)
            # One that was there a moment ago is started again: nobody listens meanwhile.
            if not was_tried or not (may_pass(error, self.url) or (was_there and nobody_listens(error))):
                raise connect_error(error or TimeoutError("it takes too long"), self.url) from error
            # A slow server gets more time.
            self._pool.first_connect_s = None

    def expect_writes(self) -> None:
        self._pool.open_ahead(self.writers)

    @contextmanager
    def connection(self, timeout_s: float | None = None) -> Iterator[ServerConnection]:
        try:
            connection = self._pool.getconn(timeout_s)
        except PoolClosed as e:
            raise Unavailable("the store is closed") from e
        except PoolTimeout as e:
            raise Unavailable(f"cannot get a connection to PostgreSQL: {self._pool.last_error or e}") from e
        try:
            # Not `with connection`: its COMMIT costs as much as a statement, and there is nothing to commit.
            yield connection
        finally:
            self._pool.putconn(connection)

    @contextmanager
    def transaction(self) -> Iterator[PostgresTx]:
        with self.connection() as connection:
            tx = self._local.tx = PostgresTx(connection, self)
            try:
                yield tx
                tx.flush()
            except BaseException as e:
                _roll_back(connection)
                tx.unlock_picked(committed=False)
                if _is_lost(connection, e):
                    # A crashed server may allocate the keys of the stock again.
                    self.lease_keys.clear()
                    raise Unavailable(f"the connection to PostgreSQL broke: {e}") from e
                _raise_guard_failed(e)
                raise
            finally:
                self._local.tx = None
            if tx.xid is None:
                return
            failpoints.hit("committing")
            notified = tx.wakes and self.notifies_at_once(tx.work)
            if notified:
                tx.notify(format_new_work(tx.work, self.sender))
            run, connection.warnings.seen = connection.run, False
            try:
                tx.commit()
                is_certain = not connection.warnings.seen
            except psycopg.Error as e:
                if is_refused(e):
                    _roll_back(connection)
                    tx.unlock_picked(committed=False)
                    _raise_guard_failed(e)
                    raise
                # The COMMIT may have reached the server.
                connection.close()
                self.lease_keys.clear()
                is_certain = False
        xid, written_row = tx.xid, tx.written_row
        if not is_certain and not self.resolve(lambda connection: outcome_of(connection, xid, written_row, run)):
            tx.unlock_picked(committed=False)
            raise Unavailable("the connection to PostgreSQL broke before COMMIT took effect; nothing was written")
        tx.lower_marks()
        tx.unlock_picked(committed=True)
        failpoints.hit("committed")
        if tx.wakes:
            self.run_commit_hooks(tx.work, notified)

    @property
    def is_closed(self) -> bool:
        return self._pool.closed

    def submit_one(self, task: Columns, event: Columns, then: Callable[[Tx, int], object] | None = None) -> None:
        assert then is None
        submit_one_postgres(self, task, event)

    def submit_several(self, tasks: Columns) -> None:
        submit_several_postgres(self, tasks)

    def claim_one(self, claim: LoneClaim) -> LoneTask | None:
        return claim_one_postgres(self, claim)

    def entered(self, queue: int, rank: int, task: int) -> None:
        """See LowWater.enter."""
        low = self.low_water.get(queue)
        if low is not None:
            low.enter(rank, task)

    def borrow(self, connection: object) -> CallerTransaction:
        return caller_transaction(self, connection)

    def identity(self, refresh: bool = False) -> tuple[Any, ...]:
        """Identifies the running server and the database. A restart of the server changes it."""
        if self._identity is None or refresh:
            self._identity = self._fetch(IDENTITY, {})[0]
        return self._identity

    def resolve(self, read_outcome: Callable[[Connection[Any]], CommitOutcome]) -> bool:
        """Find out whether a transaction took effect whose COMMIT got no answer, or one with a warning.

        With synchronous replication, also waits until the standbys have it.
        """
        until = time.monotonic() + self.patience_s
        outcome = CommitOutcome.UNDER_WAY
        while True:
            with suppress(psycopg.OperationalError, Unavailable), self.connection() as connection:
                # A standby may not have received the transaction yet.
                ((is_standby,),) = connection.execute("SELECT pg_is_in_recovery()").fetchall()
                if not is_standby:
                    outcome = read_outcome(connection)
                if outcome is CommitOutcome.WRITTEN and confirmed(connection, connection.warnings, until):
                    return True
            if outcome is CommitOutcome.NOT_WRITTEN:
                return False
            if outcome is CommitOutcome.UNKNOWN:
                raise MayBeRepeated
            if time.monotonic() > until:
                raise OutcomeUnknown(_UNCONFIRMED if outcome is CommitOutcome.WRITTEN else _UNANSWERED)
            time.sleep(0.05)

    def read(self, name: str, /, **params: Any) -> Rows:
        statement = self.statements.by_name[name]
        params.setdefault("now", self.clock.now() if self.clock else None)
        return statement.rows(self._fetch(statement.sql, bind_postgres(statement, params)))

    def read_sql(self, sql: str, /, **params: Any) -> Rows:
        return self._fetch(PARAM.sub(r"%(\1)s", sql.replace("%", "%%")), params)

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        try:
            with self.connection() as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                try:
                    # For few queries over whole tables: sort in memory, and do not compile. By statistics from before
                    # the first commit a table is empty: a nested loop would scan it once for each row.
                    connection.execute(_WHOLE_TABLES, prepare=False)
                    yield PostgresSnapshot(connection)
                finally:
                    _roll_back(connection)
        except psycopg.OperationalError as e:
            raise Unavailable(f"PostgreSQL does not answer: {e}") from e

    def read_within(self, name: str, /) -> Rows:
        tx: PostgresTx | None = getattr(self._local, "tx", None)
        # Threads that take a second connection could exhaust the pool.
        return self.read(name) if tx is None else tx.query(name)

    def _fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        try:
            try:
                return self._fetch_once(sql, params)
            except psycopg.OperationalError as e:
                if is_refused(e):
                    raise
                # The connection broke while it was idle. Drop all such connections, and repeat the read once.
                self._pool.check()
                return self._fetch_once(sql, params)
        except psycopg.OperationalError as e:
            raise Unavailable(f"PostgreSQL does not answer: {e}") from e

    def _fetch_once(self, sql: str, params: dict[str, Any]) -> Rows:
        with self.connection() as connection:
            return run_queries(connection, [(sql, params)])[0]

    def now(self) -> int:
        ((now,),) = self._fetch(f"SELECT {CLOCK}", {"now": self.clock.now() if self.clock else None})
        return int(now)

    def version(self) -> int:
        ((table,),) = self._fetch("SELECT to_regclass('onetray.migration')", {})
        if table is None:
            return 0
        ((number,),) = self._fetch("SELECT coalesce(max(number), 0) FROM onetray.migration", {})
        return known_version(int(number))

    def migrate(self) -> list[int]:
        applied = []
        # Raises for a version that no migration starts from.
        for number in newer_migrations(self.version()):
            if number == old_events.NUMBER and self.version() < number:
                old_events.move_old_events(self)
            if self._apply(number):
                applied.append(number)
        return applied

    def _apply(self, number: int) -> bool:
        """Apply a migration. Returns False if it had been applied before."""
        may_be_applied = False

        def once() -> bool:
            nonlocal may_be_applied
            with self.connection() as connection:
                try:
                    return self._migrate(connection, number, may_be_applied)
                except psycopg.Error as e:
                    if not _is_lost(connection, e):
                        raise
                    may_be_applied = True
                    raise MayBeRepeated from e

        return retry_transaction(once, self.patience_s, lambda: self.is_closed)

    def _migrate(self, connection: Connection[Any], number: int, may_be_applied: bool) -> bool:
        with connection.transaction():
            # Another process that migrates waits for this transaction, and then finds the migration applied.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
            # A migration that waits for a long reader would block every worker: fail instead.
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
            failpoints.hit("committing")
        return may_be_applied or done is None

    def upto(self, needed: int = 2**63) -> int:
        passed = self._barrier.passed
        return passed if passed >= needed else self._barrier.upto(WAIT_S)

    def tail(self) -> int:
        passed = self._barrier.upto(TAIL_WAIT_S)
        if passed or not self._barrier.pending:
            return passed
        # An open transaction holds the barrier, and this process has not passed it yet. Start at the last visible
        # event rather than at the beginning of the log.
        ((last,),) = self.read("last_event_id")
        return int(last)

    @property
    def held_up(self) -> bool:
        return self._barrier.pending

    def notifies_at_once(self, work: NewWork[int]) -> bool:
        """Whether a commit sends its NOTIFY in its own transaction: that is sooner, but serializes such commits."""
        if self.pooler or not work or not self.on_commit:
            return False
        last, self._notified_at = self._notified_at, time.monotonic()
        return self._notified_at - last > QUIET_S

    def notify_others(self, work: NewWork[int]) -> None:
        self._notified_at = time.monotonic()
        with self._pool.connection(timeout=2.0) as connection:
            connection.execute(NOTIFY, {"news": format_new_work(work, self.sender)})

    def listener(self) -> PostgresListener | None:
        return (
            None
            if self.pooler
            else PostgresListener(self.url, self.sender, self.named, self.outage.began, self.outage.answered)
        )

    def close(self) -> None:
        self._pool.close()


def _roll_back(connection: Connection[Any]) -> None:
    with suppress(psycopg.Error):
        connection.rollback()


def _raise_guard_failed(e: BaseException) -> None:
    """Raise GuardFailed if this is the error of a move that changed too few rows."""
    if isinstance(e, psycopg.errors.DivisionByZero):
        raise GuardFailed(TOO_FEW) from e


def _is_lost(connection: Connection[Any], error: BaseException) -> bool:
    """Whether the connection is gone; otherwise the server rejected a statement."""
    if not isinstance(error, psycopg.Error):
        return False
    return connection.closed or connection.broken or (error.sqlstate is not None and not is_refused(error))
