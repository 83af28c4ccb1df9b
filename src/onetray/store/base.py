"""What a store is: transactions that query, write in batches and move; reads; migrations.

Owns the shape that both databases share. What differs is in sqlite.py and postgres.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any, Protocol, TypeVar

from uuid_utils import uuid4

from onetray.domain.clock import Clock
from onetray.domain.errors import InvalidInput, MigrationNeeded
from onetray.domain.machine import Transition
from onetray.notify.base import Listener, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue, everywhere
from onetray.store.interned import InternedNames
from onetray.store.retry_transaction import retry_transaction
from onetray.store.rows import ClaimedRow, FlowRow, TaskRow
from onetray.store.schema import migrations
from onetray.store.statements import statements_for

Columns = Mapping[str, Any]
"""A batch in columns: a list for each, all of one length; what is not a list holds for every row."""
Rows = list[Any]
"""Rows of the type that a statement declares in its .sql file; plain tuples where it declares none. Mypy knows which
(tools/mypy_rows.py)."""
T = TypeVar("T")


def in_rows(columns: Columns, order: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """A batch row by row, its columns in this order."""
    size = len(next(values for values in columns.values() if isinstance(values, list)))
    picked = (columns[name] for name in order)
    return zip(*(values if isinstance(values, list) else repeat(values, size) for values in picked), strict=True)


WAKING = frozenset(
    {
        "insert_event",
        "insert_note",
        "insert_ready",
        "promote_ready",
        "pause_queue",
        "open_ready",
        "insert_flow_note",
        "set_progress",
        "insert_log",
        "close_breakers",
        "open_breaker",
    }
)
"""Statements whose effect somebody may wait for. Moves and new tasks are such, too."""


class MixedUse:
    """The queues in which a claim by kinds has lately met tasks of other kinds."""

    FOR_S = 10.0

    def __init__(self) -> None:
        self._met: dict[int, float] = {}

    def __contains__(self, queue: int) -> bool:
        met = self._met.get(queue)
        return met is not None and time.monotonic() - met < self.FOR_S

    def add(self, queue: int) -> None:
        self._met[queue] = time.monotonic()


class Tx(Protocol):
    """One transaction. Everything that it did is there after it, or nothing is."""

    names: InternedNames
    mixed: MixedUse
    work: NewWork[int]
    """What there may be to claim after it."""

    @property
    def now(self) -> int:
        """The time of this transaction: on PostgreSQL the database's, read after the last locks were taken."""
        ...

    def query(self, name: str, /, **params: Any) -> Rows: ...

    def ask(self, name: str, /, **params: Any) -> Rows:
        """As query, but the rows need not be there before the next query is answered: it saves a round trip."""
        ...

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        """Run a statement for all rows of a batch, given as columns."""
        ...

    def move(self, hops: tuple[Transition, ...], columns: Columns, held: bool = False) -> None:
        """Change the state of these tasks, stages or flows, and write one event for each hop. The only way to do so.

        All of them, or GuardFailed. When `held`, they were not locked before: the guard also asks whether the worker
        holds them, under the lease that it says, and whether they are in no flow.
        """
        ...

    def lock(self, keys: list[int]) -> list[TaskRow]:
        """Lock tasks in sorted order and read what decisions are made from."""
        ...

    def lock_flows(self, keys: list[int]) -> list[FlowRow]:
        """Lock flows in sorted order, before any of their tasks."""
        ...

    def pick(self, queue: int, kinds: list[int] | None, limit: int, past_breakers: bool = False) -> list[ClaimedRow]:
        """Lock claimable tasks, highest priority first, then oldest; skip what others have locked.

        Nothing is found while any breaker is open, unless the caller has taken out the kinds of those: so most
        claims need not ask about breakers.
        """
        ...

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        """Wait for the same claim, made at the same time: what it locks would be skipped, and nothing be found."""
        ...

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None: ...

    def new_keys(self, count: int) -> list[int]: ...

    def new_leases(self, count: int) -> list[int]: ...


class ForeignTransaction(Protocol):
    """A transaction of somebody else's, in which jobs may be submitted."""

    def savepoint(self) -> AbstractContextManager[Tx]:
        """A part of it that leaves nothing behind when it raises."""
        ...


class Snapshot(Protocol):
    """The database as it stood at one moment. Nothing can be changed through it."""

    def select(self, sql: str, /) -> list[dict[str, Any]]:
        """Run a query that is not in store/sql, with PostgreSQL's names for the tables."""
        ...


class Store(ABC):
    """A database with onetray's tables in it."""

    dialect: str
    writers: int
    """How many transactions may write at the same time with profit."""
    single_process = False
    """Whether no other process can write to this database."""
    takes_one = False
    """Whether a single task is best written by `submit_one`."""
    notifies_others = False
    """Whether this process has to notify others of its commits."""
    notify_every_s = 0.0
    """How often it notifies them of commits that bring no work."""
    patience_s = 60.0
    """How long a write waits for a database that is away."""

    def __init__(self, clock: Clock | None) -> None:
        self.clock = clock
        self.on_commit: list[Callable[[NewWork[int], bool], None]] = []
        """Called after each commit that somebody may wait for, with what there may be to claim, and whether other
        processes were notified already. They must be quick and must not raise."""
        self.sender = uuid4().hex[:8]
        """Names this store in its notifications: whoever receives one knows whether it is its own."""
        self.statements = statements_for(self.dialect)
        self.mixed = MixedUse()
        self.names = InternedNames(self)

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Tx]: ...

    def write(self, work: Callable[[Tx], T], *, again: bool = True) -> T:
        """Carry out in one transaction whatever is no command, and answer what `work` answers.

        The way to write for all but the committer: whoever returns from here has it in the database. What `work` does
        must do no harm when it is done twice. Unless `again` is False, it is tried again, as commands are, while the
        database is away or the answer to its COMMIT is lost.
        """

        def once() -> T:
            with self.transaction() as tx:
                return work(tx)

        return retry_transaction(once, self.patience_s if again else 0.0, lambda: self.is_closed)

    @property
    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def submit_one(self, task: Columns, event: Columns) -> None:
        """Write one new task that may run at once, with its ready row and its event. It is there when this returns.

        Keys and times are the store's to fill in.
        """

    def borrow(self, connection: object) -> ForeignTransaction:
        """The transaction that is open on a connection of the caller's."""
        raise InvalidInput("a submit inside your own transaction needs PostgreSQL: leave it out", field="connection")

    @abstractmethod
    def read(self, name: str, /, **params: Any) -> Rows:
        """Run one named query outside of any transaction, from any thread."""

    def read_within(self, name: str, /) -> Rows:
        """The same for a thread that may be in a transaction: what it reads need not be what it wrote."""
        return self.read(name)

    @abstractmethod
    def read_sql(self, sql: str, /, **params: Any) -> Rows:
        """Run a query that is not in store/sql, with `:name` parameters."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Read many things as of one moment, while others write."""

    @abstractmethod
    def now(self) -> int: ...

    @abstractmethod
    def version(self) -> int:
        """The number of the last migration that was applied; 0 for an empty database."""

    @abstractmethod
    def migrate(self) -> list[int]:
        """Apply what is missing, under a lock. Returns the numbers that were applied."""

    @abstractmethod
    def upto(self, needed: int = 2**63) -> int:
        """The greatest id of a committed event up to which nothing can appear any more: the feed reads as far as this.

        When it is known to be `needed` already, nothing is asked.
        """

    @abstractmethod
    def tail(self) -> int:
        """An event id that everything committed from now on lies past."""

    @property
    def held_up(self) -> bool:
        """Whether there are events that a writer, still at work, keeps from being read."""
        return False

    def notify_others(self, work: NewWork[int]) -> None:
        """Notify other processes of a commit and of the work that it brings."""
        return

    def listener(self) -> Listener | None:
        """A listener for commits of other processes; None if there can be none."""
        return None

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener | None:
        """A listener for new work alone; None if `listener` notices both."""
        return None

    def run_commit_hooks(self, work: NewWork[int], others_know: bool = False) -> None:
        for hook in self.on_commit:
            hook(work, others_know)

    def check_file(self) -> None:
        """Raise DatabaseMoved when the file of the database is not the one that was opened. Servers have none."""
        return

    def named(self, work: NewWork[int]) -> NewWork[Queue]:
        """The same by the names of the queues. Where they cannot be read, it may be any queue."""
        try:
            return work.named(self.names.place)
        except Exception:
            return everywhere()

    def with_work(self, queues: Collection[Queue]) -> set[Queue]:
        """Those of the queues that hold something to claim."""
        keys = self.names.queue_keys(queues)
        return {keys[key] for (key,) in self.read("queues_with_work", keys=list(keys))} if keys else set()

    @abstractmethod
    def close(self) -> None: ...

    def check_version(self) -> None:
        have, want = self.version(), migrations()[-1]
        if have < want:
            raise MigrationNeeded(
                f"the schema is at version {have}, this code needs {want}: run `onetray migrate`", have=have, want=want
            )
        if have > want:
            raise MigrationNeeded(
                f"the schema is at version {have}, this code knows only {want}: install a newer onetray",
                have=have,
                want=want,
            )
