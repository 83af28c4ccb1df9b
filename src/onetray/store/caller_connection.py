"""Writes within the caller's own transaction, on PostgreSQL.

Owns what is required of the caller's connection, and what runs on it: statements within a savepoint. Never begins,
commits or rolls back the transaction. The connection's settings (row factories, prepared statements, search_path) do
not matter, and stay unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onetray.domain.errors import GuardFailed, InvalidInput, StoreError, Unavailable
from onetray.notify.new_work import format_new_work
from onetray.notify.postgres import NOTIFY
from onetray.store.base import Columns, Rows
from onetray.store.pg_pipeline import Query
from onetray.store.postgres_tx import CLOCK, TOO_FEW, PostgresTx

if TYPE_CHECKING:
    from onetray.domain.commands import Command
    from onetray.domain.task import Verdict
    from onetray.store.postgres import PostgresStore

# A copy of a database has the same system identifier, but no two running servers started in the same microsecond.
IDENTITY = """
    SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text),
        (SELECT CAST(oid AS text) FROM pg_database WHERE datname = current_database())
"""
_CHECK = f"{IDENTITY}, current_setting('transaction_read_only') = 'off'"
# The transaction id comes before the first nextval of an event id: the feed's barrier relies on that.
_TRANSACTION_ID = f"SELECT CAST(pg_current_xact_id() AS text), {CLOCK}"
_NOT_ALLOWED = "42501"

_UNUSABLE = {
    TransactionStatus.INERROR: "its transaction has failed: roll it back first",
    TransactionStatus.ACTIVE: "it is busy with another statement: finish that first",
    TransactionStatus.UNKNOWN: "it is closed",
}


class CallerConnection(Protocol):
    """Runs statements on the caller's connection."""

    @property
    def connection(self) -> Connection[Any] | AsyncConnection[Any]: ...

    def run(self, sql: str, params: dict[str, Any] | None = None) -> Rows: ...

    def undo(self, sql: str) -> None:
        """As run, also after `stop`."""
        ...


class SyncCallerConnection:
    """A connection used in the caller's thread."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection

    def run(self, sql: str, params: dict[str, Any] | None = None) -> Rows:
        # Our own cursor class: the connection's factories are the caller's. Never prepared: the connection would
        # remember that.
        with Cursor(self.connection, row_factory=tuple_row) as cursor:
            cursor.execute(sql, params, prepare=False)
            return cursor.fetchall() if cursor.description else []

    def undo(self, sql: str) -> None:
        self.run(sql)


class AsyncCallerConnection:
    """An async connection: its statements run in its event loop while another thread waits for them."""

    def __init__(self, connection: AsyncConnection[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.connection, self._loop = connection, loop
        self._stopped = False
        self._running: Future[Rows] | None = None

    def run(self, sql: str, params: dict[str, Any] | None = None) -> Rows:
        self._running = future = asyncio.run_coroutine_threadsafe(self._run(sql, params), self._loop)
        if self._stopped:
            # Checked after the future is set: either this sees the stop, or stop sees the future.
            future.cancel()
        return future.result()

    async def _run(self, sql: str, params: dict[str, Any] | None = None) -> Rows:
        async with AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(sql, params, prepare=False)
            return await cursor.fetchall() if cursor.description else []

    def undo(self, sql: str) -> None:
        asyncio.run_coroutine_threadsafe(self._run(sql), self._loop).result()

    def stop(self) -> None:
        """Cancel the running statement, and allow only undo after it. Called on the event loop."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()


class CallerTransaction:
    """A caller's transaction that has passed all checks."""

    def __init__(self, caller: CallerConnection, store: PostgresStore) -> None:
        self._caller, self._store = caller, store

    @contextmanager
    def savepoint(self) -> Iterator[CallerTx]:
        """What the block writes becomes part of the caller's transaction; if the block raises, nothing does."""
        try:
            self._caller.run("SAVEPOINT onetray")
            try:
                tx = CallerTx(self._caller, self._store)
                yield tx
                tx.flush()
                if tx.wakes and not self._store.pooler:
                    # PostgreSQL sends it when the caller commits. It names no sender, so that this process handles it,
                    # too: it does not see that commit.
                    self._caller.run(NOTIFY, {"news": format_new_work(tx.work, "")})
            except BaseException:
                # A broken connection has nothing left to undo.
                with suppress(psycopg.Error, CancelledError):
                    self._caller.undo("ROLLBACK TO SAVEPOINT onetray")
                    self._caller.undo("RELEASE SAVEPOINT onetray")
                raise
            self._caller.run("RELEASE SAVEPOINT onetray")
        except psycopg.Error as e:
            if isinstance(e, psycopg.errors.DivisionByZero):
                raise GuardFailed(TOO_FEW) from e
            if self._caller.connection.closed:
                raise Unavailable(f"your connection broke, and your transaction with it: {e}") from e
            if e.sqlstate == _NOT_ALLOWED:
                raise StoreError(
                    f"your connection's user may not write to onetray's tables: grant it the privileges. {e}"
                ) from e
            raise


class CallerTx(PostgresTx):
    """Runs statement by statement, without BEGIN and SET: a setting would stay for the rest of the transaction."""

    is_callers = True

    def __init__(self, caller: CallerConnection, store: PostgresStore) -> None:
        no_connection: Any = None
        super().__init__(no_connection, store)
        self._caller = caller
        self._pending = []

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        self.create("insert_member" if "stage" in tasks else "insert_task", tasks, events)
        self.batch("insert_ready", ready)

    def _send(self, last: Query | None = None, returns: bool = True) -> Rows:
        if self.xid is None:
            ((self.xid, self._now),) = self._caller.run(_TRANSACTION_ID, {"now": self._test_time})
        todo, self._pending = self._pending, []
        if last is not None:
            todo.append(last)
        rows: Rows = []
        for sql, params in todo:
            rows = self._caller.run(sql, params)
        return rows if last is not None and returns else []

    def flush(self) -> None:
        if self._pending:
            self._send()


def caller_transaction(store: PostgresStore, connection: object) -> CallerTransaction:
    """Check that the connection is in a transaction on the engine's database that can write."""
    caller = _caller_connection(connection)
    status = caller.connection.info.transaction_status
    if status in _UNUSABLE:
        raise _refusal(_UNUSABLE[status])
    if caller.connection.info.pipeline_status != PipelineStatus.OFF:
        raise _refusal("it is in a pipeline, whose answers come later: leave that first")
    if status == TransactionStatus.IDLE and caller.connection.autocommit:
        raise _refusal("it commits each statement by itself: begin a transaction (`with connection.transaction():`)")
    try:
        ((*identity, can_write),) = caller.run(_CHECK)
    except psycopg.OperationalError as e:
        raise Unavailable(f"your connection does not respond: {e}") from e
    if tuple(identity) != store.identity() and tuple(identity) != store.identity(refresh=True):
        raise _refusal("it is connected to another database than the engine")
    if not can_write:
        raise _refusal("its transaction is read-only")
    return CallerTransaction(caller, store)


def _caller_connection(connection: object) -> CallerConnection:
    if isinstance(connection, AsyncCallerConnection):
        return connection
    if isinstance(connection, Connection):
        return SyncCallerConnection(connection)
    if isinstance(connection, AsyncConnection):
        raise _refusal(
            "it is async: await onetray.store.caller_connection.submit_on_connection(engine, connection, commands)"
        )
    raise _refusal(f"it must be a psycopg.Connection, not {type(connection).__name__}")


def _refusal(why: str) -> InvalidInput:
    return InvalidInput(f"cannot submit on this connection: {why}", field="connection")


class Runs(Protocol):
    """The part of an engine that submit_on_connection uses."""

    def run(self, commands: Sequence[Command], *, connection: Any = None) -> list[Verdict]: ...


async def submit_on_connection(
    engine: Runs, connection: AsyncConnection[Any], commands: Sequence[Command]
) -> list[Verdict]:
    """Submit within the transaction of an async connection, without blocking its event loop."""
    if not isinstance(connection, AsyncConnection):
        raise _refusal(f"it must be a psycopg.AsyncConnection, not {type(connection).__name__}")
    loop = asyncio.get_running_loop()
    caller = AsyncCallerConnection(connection, loop)
    # A bare future and no task: a loop that ends cancels all its tasks, and would not wait for the thread.
    work = loop.run_in_executor(None, partial(engine.run, commands, connection=caller))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # Wait for the thread: until it ends, the caller must not use the connection.
        caller.stop()
        await asyncio.wait({work})
        work.exception()
        raise
