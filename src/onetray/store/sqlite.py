"""SQLite, through apsw: one file, one writer at a time, group commit above it.

Owns connections and pragmas. Statements run in sqlite_tx.py. All transactions share one connection, which one thread
at a time uses; each read takes a connection from a pool.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import apsw

from onetray import failpoints
from onetray.config import EngineConfig
from onetray.domain.clock import Clock, SystemClock
from onetray.domain.errors import DatabaseReplaced, NoDatabase, StoreError, Unavailable
from onetray.notify.base import FileListener
from onetray.notify.multicast import MulticastSender
from onetray.notify.new_work import NewWork, format_new_work
from onetray.store import old_events
from onetray.store.base import Columns, Rows, Store, Tx
from onetray.store.database_time import DatabaseTime
from onetray.store.open_file import OpenFile, network_filesystem, require_folder
from onetray.store.schema import copy_migrated, known_version, migration, migrations, newer_migrations
from onetray.store.sql_template import SQLITE
from onetray.store.sqlite_connection import close, prepare, roll_back
from onetray.store.sqlite_tx import SqliteSnapshot, SqliteTx, bind_sqlite, sha256_hex

END_OF_LOG = """
SELECT value, coalesce((SELECT ts FROM event_batch ORDER BY id DESC LIMIT 1), 0) FROM counter WHERE name = 'event_id'
"""
LAST_HEARTBEAT = "SELECT coalesce(max(beat_at), 0) FROM worker"
PRAGMAS = (
    # Readers never wait for the writer, and a commit is one append and one fsync.
    "journal_mode = WAL",
    # Acknowledged commits survive a power failure. With grouped commits, NORMAL is not faster.
    "synchronous = FULL",
    "cache_size = -8192",
    "temp_store = MEMORY",
    "foreign_keys = ON",
    # Longer intervals were measured without gain.
    "wal_autocheckpoint = 1000",
)
INTEGRITY_STEPS, INTEGRITY_LINES = 10_000, 1_000
"""How many steps of SQLite's machine pass between two looks at the clock, and how many problems are listed."""
OF_ROWS = ("CHECK constraint failed", "NULL value")
"""Problems of the integrity check that are about what rows contain: the verifier has its own rules for that."""
CHANGES_S = 0.05
"""How long `changes` waits for a transaction of this process: its caller polls."""
_memory_names = itertools.count()


class SqliteStore(Store):
    dialect = SQLITE
    writers = 1
    takes_one = takes_more_with_one = True

    def __init__(
        self, url: str, clock: Clock | None = None, *, create: bool = True, clock_skew_s: float | None = None
    ) -> None:
        skew_s = EngineConfig().clock_skew_s if clock_skew_s is None else clock_skew_s
        self.time = DatabaseTime(clock or SystemClock(), skew_s)
        self.path = _path(url)
        self.address = url if self.path is None else f"sqlite:///{quote(self.path)}"
        self.memory = self.single_process = self.path is None
        self.notifies_others = not self.single_process
        if self.path is not None:
            _refuse_network(self.path)
            require_folder(self.path)
            if not create and not os.path.exists(self.path):
                raise NoDatabase(f"no database exists at {self.path}", path=self.path)
        self._name = self.path or f"file:/onetray-{os.getpid()}-{next(_memory_names)}?vfs=memdb"
        self._local = threading.local()
        self._all: list[apsw.Connection] = []
        self._idle: list[apsw.Connection] = []
        self._multicast: MulticastSender | None = None
        self._writing = threading.Lock()
        self._changes = 0
        self._closed = False
        self._file: OpenFile | None = None
        self.last_event = 0
        """The id of the newest event after the last transaction of this store."""
        self._newest = 0
        """The time of that event."""
        self.last_key: int | None = None
        """The last key of a task, a stage or a flow then; None if it is not known."""
        self._data_version: int | None = None
        """Of the database after that transaction: another one means that somebody else has written since."""
        self._writer = self._connect()
        if self.path is not None:
            self._file = OpenFile(self.path, self._writer)
        super().__init__(clock)

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
        if self._file is None:
            flags |= apsw.SQLITE_OPEN_CREATE
        self.check_file()
        try:
            connection = apsw.Connection(self._name, flags=flags, statementcachesize=200)
            prepare(connection, PRAGMAS)
        except apsw.Error as e:
            raise StoreError(f"cannot open the database at {self._name}: {e}", path=self._name) from e
        if connection.readonly("main"):
            connection.close()
            raise StoreError(f"the database at {self._name} is read-only: give this user write permission")
        try:
            self.check_file()
        except BaseException:
            connection.close()
            raise
        self._all.append(connection)
        return connection

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_file(self) -> None:
        if self._closed:
            # The last process that closes the database removes -wal and -shm.
            raise Unavailable("the store is closed")
        if self._file is not None:
            self._file.check()

    @contextmanager
    def transaction(self) -> Iterator[SqliteTx]:
        with self._writing:
            if self._closed:
                raise Unavailable("the store is closed")
            connection = self._writer
            try:
                connection.execute("BEGIN IMMEDIATE")
                if self._file is not None:
                    self._file.note_sides()
                failpoints.hit("begun")
                self._read_end_of_log(connection)
                tx = SqliteTx(connection, self)
                self._local.writing = True
                yield tx
                has_events = tx.last_event != self.last_event
                tx.write_counters(self)
                if tx.work and tx.wakes and not tx.work.announced:
                    self._announce(tx.work)
                failpoints.hit("committing")
                # As late as possible: if the file is removed after this, all earlier commits are removed with it, too.
                if self._file is not None:
                    self._file.check_in(connection)
                connection.execute("COMMIT")
                if has_events:
                    self.last_event, self._newest = tx.last_event, tx.now
                self.last_key = tx.last_key
                self._data_version = connection.data_version()
            except (apsw.CorruptError, apsw.NotADBError) as e:
                roll_back(connection)
                raise self._overwritten(str(e)) from e
            except (apsw.BusyError, apsw.FullError, apsw.IOError, apsw.ReadOnlyError) as e:
                roll_back(connection)
                if isinstance(e, apsw.IOError) and self._file is not None:
                    # A copy over the file may have truncated it.
                    with suppress(apsw.Error):
                        self._file.check_in(connection)
                raise Unavailable(f"cannot write to the database: {e}") from e
            except BaseException:
                roll_back(connection)
                raise
            finally:
                self._local.writing = False
        failpoints.hit("committed")
        if tx.wakes:
            self.run_commit_hooks(tx.work)

    def _announce(self, work: NewWork[int]) -> None:
        for hook in self.before_commit:
            hook(work)

    def _read_end_of_log(self, connection: apsw.Connection) -> None:
        """Read the newest event's id and time. A lower id than before means a database restored in place."""
        known, self._data_version = self._data_version, None
        if connection.data_version() == known:
            self.time.observe(self._newest)
            return
        self.last_key = None
        last, newest = _end_of_log(connection)
        if last < self.last_event and self._file is not None:
            raise self._overwritten(f"its last event is {last}, but it contained event {self.last_event} before")
        if not self.last_event:
            # Workers that have written no event lately may have sent heartbeats.
            newest = max(newest, _number(connection, LAST_HEARTBEAT))
        self.last_event, self._newest = last, newest
        self.time.observe(newest)

    def _overwritten(self, why: str) -> DatabaseReplaced:
        return DatabaseReplaced(
            f"the database {self._name} was overwritten or damaged while this process had it open: {why}. "
            "Nothing was written. Stop all processes that use it, run `onetray verify`, then start them again",
            path=self._name,
        )

    def submit_one(self, task: Columns, event: Columns, then: Callable[[Tx, int], object] | None = None) -> None:
        with self.transaction() as tx:
            tx.work.count(task["queue"], 1)
            if then is None:
                # Not only before the commit: whoever waits for work is awake sooner.
                self._announce(tx.work)
                tx.insert_task(task, event)
            else:
                then(tx, tx.insert_task(task, event))

    def read(self, name: str, /, **params: Any) -> Rows:
        statement = self.statements.by_name[name]
        params.setdefault("now", self.time.now())
        return statement.rows(self._fetch(statement.sql, bind_sqlite(statement, params)))

    def read_sql(self, sql: str, /, **params: Any) -> Rows:
        return self._fetch(sql.replace("onetray.", ""), params)

    def _fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        try:
            with self._reader() as connection:
                return connection.execute(sql, params).fetchall()
        except (apsw.BusyError, apsw.IOError, apsw.InterruptError, apsw.ConnectionClosedError) as e:
            raise Unavailable(f"cannot read the database: {e}") from e

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSnapshot]:
        connection = self._connect()
        try:
            connection.execute("PRAGMA query_only = ON")
            # The rows to sort may not fit into memory.
            connection.execute("PRAGMA temp_store = FILE")
            connection.create_scalar_function("sha256_hex", sha256_hex, 1, deterministic=True)
            connection.execute("BEGIN DEFERRED")
            yield SqliteSnapshot(connection)
        finally:
            self._all.remove(connection)
            connection.close(True)

    def integrity(self, *, full: bool, limit_s: float) -> list[str] | None:
        """Ask SQLite. The full check also compares each index with its table."""
        until = time.monotonic() + limit_s
        connection = self._connect()
        try:
            connection.set_progress_handler(lambda: time.monotonic() > until, INTEGRITY_STEPS)
            check = "integrity_check" if full else "quick_check"
            lines = [str(line) for (line,) in connection.execute(f"PRAGMA {check}({INTEGRITY_LINES})")]
            return [] if lines == ["ok"] else [line for line in lines if not line.startswith(OF_ROWS)]
        except apsw.InterruptError:
            return None
        except (apsw.CorruptError, apsw.NotADBError) as e:
            return [str(e)]
        finally:
            self._all.remove(connection)
            connection.close(True)

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        """A pooled connection for one read. The pool grows with concurrent reads, not with threads."""
        if self._closed:
            raise Unavailable("the store is closed")
        if self._file is not None:
            self._file.check_main()
        if getattr(self._local, "writing", False):
            # In memory a second connection would wait for the lock that this thread holds.
            yield self._writer
            return
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def now(self) -> int:
        self.check_file()
        if self.path is not None:
            for _, newest in self._fetch(END_OF_LOG, {}):
                self.time.observe(newest)
        return self.time.now()

    def version(self) -> int:
        with self._reader() as connection:
            number = _number(connection, "PRAGMA user_version")
            tables = _number(connection, "SELECT count(*) FROM sqlite_schema WHERE name IN ('lease', 'due', 'ready')")
        if number and not tables:
            # Other programs use `user_version`, too.
            raise StoreError(f"{self._name} is another program's database: choose another file", path=self._name)
        return known_version(number)

    def migrate(self) -> list[int]:
        applied = []
        # Raises for another program's database, and for a version that no migration starts from.
        version = self.version()
        if not version and self.memory:
            with self._writing:
                copy_migrated(self._writer)
            return list(migrations())
        for number in newer_migrations(version):
            if number == old_events.NUMBER and self.version() < number:
                old_events.move_old_events(self)
            if self._apply(number):
                applied.append(number)
        return applied

    def _apply(self, number: int) -> bool:
        """Apply a migration. Returns False if it had been applied before."""
        with self._writing:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                # Read under the lock: another process may have migrated meanwhile.
                is_new = _number(self._writer, "PRAGMA user_version") < number
                if is_new:
                    self._writer.execute(migration(SQLITE, number))
                    self._writer.execute(f"PRAGMA user_version = {number}")
                self._writer.execute("COMMIT")
                if self._file is not None:
                    self._file.note_sides()
                    self._file.forget_schema()
            except apsw.Error as e:
                roll_back(self._writer)
                raise StoreError(f"cannot set up the database at {self._name}: {e}", path=self._name) from e
            except BaseException:
                roll_back(self._writer)
                raise
        return is_new

    def upto(self, needed: int = 2**63) -> int:
        # There is one writer at a time, so events become visible in the order of their ids.
        ((last, _),) = self._fetch(END_OF_LOG, {})
        return int(last)

    def tail(self) -> int:
        return self.upto()

    def listener(self) -> FileListener | None:
        if self.path is None:
            return None
        return FileListener(self.path, self.sender, self.changes, self.named)

    def notify_others(self, work: NewWork[int]) -> None:
        if self._multicast is None and self.path is not None:
            self._multicast = MulticastSender(self.path)
        if self._multicast is not None:
            self._multicast.send(format_new_work(work, self.sender))

    def changes(self) -> int:
        """A number that changes after commits of other processes, and of other stores of this process."""
        # A connection's data_version does not change with its own commits, and this store writes on one connection.
        if self._writing.acquire(timeout=CHANGES_S):
            try:
                if self._closed:
                    raise Unavailable("the store is closed")
                self._changes = _number(self._writer, "PRAGMA data_version")
            finally:
                self._writing.release()
        return self._changes

    def close(self) -> None:
        with self._writing:
            if not self._closed:
                self._closed = True
                if self._multicast is not None:
                    self._multicast.close()
                for connection in reversed(self._all):
                    close(connection)


def _number(connection: apsw.Connection, sql: str) -> int:
    ((value,),) = connection.execute(sql).fetchall()
    assert isinstance(value, int)
    return value


def _end_of_log(connection: apsw.Connection) -> tuple[int, int]:
    """The id of the newest event, and its time, or that of the newest one that is left."""
    rows: list[Any] = connection.execute(END_OF_LOG).fetchall()
    return rows[0] if rows else (0, 0)


def _path(url: str) -> str | None:
    """The path of the database file; None for a database in memory."""
    if url in ("sqlite://", "sqlite://:memory:", "sqlite:///:memory:"):
        return None
    parts = urlsplit(url)
    if not url.startswith("sqlite:///"):
        name = parts.netloc + parts.path
        raise StoreError(f"{url!r} has too few slashes: write sqlite:///{name}, or sqlite:////absolute.db", url=url)
    if not parts.path.strip("/"):
        raise StoreError(f"{url!r} contains no path: write sqlite:///relative.db or sqlite:////absolute.db", url=url)
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        # Without its options the URL would name another file.
        raise StoreError(f"{url!r}: options are not supported; in a file name, write ? as %3F and # as %23", url=url)
    return os.path.abspath(unquote(parts.path[1:]))


def _refuse_network(path: str) -> None:
    kind = network_filesystem(path)
    if kind is not None:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold. "
            "Keep the file on a local disk, or use PostgreSQL",
            path=path,
            filesystem=kind,
        )
