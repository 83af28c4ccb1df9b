"""The interface of both databases: transactions, reads, migrations, notifications.

What differs between them is in sqlite.py and postgres.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, Protocol, TypeVar

from uuid_utils import uuid4

from onetray.domain.clock import Clock
from onetray.domain.errors import InvalidInput, MigrationNeeded, StoreError
from onetray.domain.machine import Transition
from onetray.notify.base import Listener, WantedWork, WorkListener
from onetray.notify.new_work import NewWork, Queue, everywhere
from onetray.store.interned import InternedNames
from onetray.store.limit_rows import BlockedLaneRow
from onetray.store.retry_transaction import Outage, retry_transaction
from onetray.store.rows import ClaimedRow, FlowRow, StageRow, TaskRow
from onetray.store.schema import migrations
from onetray.store.statements import statements_for

Columns = Mapping[str, Any]
"""A batch as columns: lists of one length. A value that is not a list applies to every row."""
Rows = list[Any]
"""Rows of the type that the statement declares in its .sql file, otherwise tuples. tools/mypy_rows.py tells mypy."""
T = TypeVar("T")


def in_rows(columns: Columns, order: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch, as tuples of the columns in this order."""
    size = len(next(values for values in columns.values() if isinstance(values, list)))
    ordered = (columns[name] for name in order)
    return zip(*(values if isinstance(values, list) else repeat(values, size) for values in ordered), strict=True)


WAKING = frozenset(
    {
        "insert_flow",
        "insert_stage",
        "insert_note",
        "insert_ready",
        "promote_ready",
        "pause_queue",
        "resume_queue",
        "open_ready",
        "insert_flow_note",
        "set_progress",
        "insert_log",
        "close_breakers",
        "open_breaker",
        "set_buckets",
        "enter_lanes",
        "rule_is_counted",
        "change_rule",
        "delete_rule",
    }
)
"""Statements that wake waiting code after their commit. So do moves and new tasks."""


class MixedUse:
    """Queues that were recently found to need another path: with tasks of kinds that a claim did not ask for, or with
    limits."""

    FOR_S = 10.0

    def __init__(self) -> None:
        self._added_at: dict[int, float] = {}

    def __contains__(self, queue: int) -> bool:
        return time.monotonic() - self._added_at.get(queue, float("-inf")) < self.FOR_S

    def __bool__(self) -> bool:
        """Whether any queue was found to."""
        return bool(self._added_at)

    def add(self, queue: int) -> None:
        self._added_at[queue] = time.monotonic()

    def discard(self, queue: int) -> None:
        self._added_at.pop(queue, None)


@dataclass(slots=True)
class LoneClaim:
    """A claim of one statement: of the only task of a queue, or of as many tasks as it wants."""

    queue: int
    ns: int
    worker: str
    request_key: str | None
    actor: str
    expiry_counts: int
    kinds: list[int] | None
    policies: list[int]
    lengths: list[int]
    """The leases of tasks with these policies, in microseconds."""


class LoneTask(NamedTuple):
    """The task that it claimed. `seen_at` is the time of the claim."""

    row: ClaimedRow
    lease: int
    length: int


class FullClaim(NamedTuple):
    """The tasks of a claim that found as many as it wanted, in the order of the queue, and their one lease."""

    rows: list[ClaimedRow]
    lease: int
    length: int
    at: int


class Tx(Protocol):
    """One transaction."""

    names: InternedNames
    mixed: MixedUse
    limited: MixedUse
    work: NewWork[int]
    """Tasks that it makes claimable."""
    is_callers: bool
    """Whether it is part of a transaction of the caller, which may keep its locks for long."""
    skips_locked: bool
    """Whether other transactions may have locked rows, so that a query that skips these does not find them."""

    @property
    def now(self) -> int:
        """The time of this transaction. On PostgreSQL it is the server's, read after the last lock was taken."""
        ...

    def query(self, name: str, /, **params: Any) -> Rows: ...

    def query_later(self, name: str, /, **params: Any) -> Rows:
        """Like query, but the list may be filled only when the next query returns: saves a round trip."""
        ...

    def batch(self, name: str, columns: Columns, /, **params: Any) -> Rows:
        """Run a statement for all rows of a batch."""
        ...

    def move(self, hops: tuple[Transition, ...], columns: Columns, held: bool = False) -> None:
        """Change the state of these tasks, stages or flows, and write an event for each hop. Nothing else does so.

        Raises GuardFailed unless it changes all of them. With `held`, the tasks are not locked: the guard also checks
        that the worker holds them under the lease that it names, and that they belong to no flow.
        """
        ...

    def lock(self, keys: list[int]) -> list[TaskRow]:
        """Lock tasks in the order of their keys, and read the columns that decisions need."""
        ...

    def lock_flows(self, keys: list[int]) -> list[FlowRow]:
        """Lock flows in the order of their keys. Call it before locking any of their tasks."""
        ...

    def lock_flows_and_tasks(
        self, flows: list[int], tasks: list[int]
    ) -> tuple[list[FlowRow], list[TaskRow], list[StageRow]]:
        """Lock flows, then tasks, both in the order of their keys, and read the stages of the tasks."""
        ...

    def lock_free_flows(self, keys: list[int]) -> list[FlowRow]:
        """Lock the flows that no other transaction has locked, without waiting: tasks may be locked already."""
        ...

    def pick(self, queue: int, kinds: list[int] | None, limit: int, past_breakers: bool = False) -> list[ClaimedRow]:
        """Lock claimable tasks, highest priority first, then oldest. Skips tasks that another transaction has locked.

        Returns none while any breaker is open, or if the queue has limits, unless `past_breakers` says that `kinds`
        and `limit` respect both: so most claims need not read them. Leaves out tasks in lanes.
        """
        ...

    def pick_from_lanes(self, limits: Mapping[int, int]) -> list[ClaimedRow]:
        """Lock the first tasks of these locked lanes: by lane, how many."""
        ...

    def lock_blocked_lanes(self, limits: Mapping[int, int]) -> list[BlockedLaneRow]:
        """Lock the first lanes that counters block, without waiting: by counter, how many."""
        ...

    def claim_one(self, claim: LoneClaim) -> LoneTask | None:
        """Claim the task that is alone in a queue, if nothing else is to be decided about it. None: claim as usual."""
        ...

    def claim_full(self, claim: LoneClaim, limit: int) -> FullClaim | None:
        """Claim so many tasks in one statement, if there are as many, all alike, and nothing else is to be decided
        about them. None: nothing was written. Then `pick` as usual, which uses what this has found."""
        ...

    def lock_request(self, ns: int, worker: str, request_key: str) -> None:
        """Wait for a concurrent duplicate of this claim. Otherwise this one would skip the tasks that it has locked."""
        ...

    def insert_tasks(self, tasks: Columns, ready: Columns, events: Columns) -> None:
        """Write new tasks, the ready rows of the claimable ones, and their events."""
        ...

    def create(self, statement: str, columns: Columns, events: Columns) -> None:
        """Write new stages or flows, and their events: as many, in the same order."""
        ...

    def note(self, statement: str, columns: Columns) -> None:
        """Write notes: events that record no transition."""
        ...

    def write_batch(self, id_: int, row: dict[str, Any], flows: list[int]) -> None:
        """Write a row of the log with an id of its own, and that it is about these flows."""
        ...

    def fetch(self, sql: str, params: dict[str, Any]) -> Rows:
        """Run a statement that is not in store/sql, with `:name` parameters."""
        ...

    def record(self, event: Columns) -> None:
        """Write one event that no row has to list: its entity is about to be deleted, or there is none."""
        ...

    def new_keys(self, count: int) -> list[int]: ...

    def new_leases(self, count: int) -> list[int]: ...

    def new_lanes(self, count: int) -> list[int]: ...

    def not_before(self, at: int) -> None:
        """Set the time of this transaction forward: to that of a lock it has waited for, or of what it has read."""
        ...


class ForeignTransaction(Protocol):
    """A transaction of the caller, in which jobs can be submitted."""

    def savepoint(self) -> AbstractContextManager[Tx]:
        """Is rolled back if the block raises."""
        ...


class Snapshot(Protocol):
    """A read-only view of the database at one moment."""

    def select(self, sql: str, /) -> list[dict[str, Any]]:
        """Run a query that is not in store/sql. It names tables as on PostgreSQL (`onetray.task`)."""
        ...

    def decode_events(self, sql: str, /) -> None:
        """Make the events that this query selects available as `event_rows`, where a query cannot do so itself."""
        ...


class Store(ABC):
    """A database with onetray's tables in it."""

    dialect: str
    address: str
    """The URL of the database without its password, for messages."""
    writers: int
    """How many concurrent write transactions are worthwhile."""
    single_process = False
    """Whether no other process can write to this database."""
    takes_one = False
    """Whether `submit_one` is the fastest way to write a single task."""
    takes_more_with_one = False
    """Whether `submit_one` can run more in its transaction."""
    takes_several = False
    """Whether `submit_several` is the fastest way to write several tasks."""
    claims_one = False
    """Whether `claim_one` is the fastest way to claim a single task."""
    notifies_others = False
    """Whether this process has to notify others of its commits."""
    notify_every_s = 0.0
    """How often it notifies them of commits that add no work."""
    patience_s = 60.0
    """How long a write retries while the database is unreachable."""

    def __init__(self, clock: Clock | None) -> None:
        self.clock = clock
        self.on_commit: list[Callable[[NewWork[int], bool], None]] = []
        """Called after each commit that wakes waiting code, with the new work, and whether other processes were
        notified already. They must be quick and must not raise."""
        self.before_commit: list[Callable[[NewWork[int]], None]] = []
        """Called just before a commit that adds work, where other processes that claim wait for its end. They must be
        quick and must not raise."""
        self.sender = uuid4().hex[:8]
        """Identifies this store in its notifications, so that its own listener can ignore them."""
        self.outage = Outage()
        self.statements = statements_for(self.dialect)
        self.mixed, self.limited = MixedUse(), MixedUse()
        self.names = InternedNames(self)

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Tx]: ...

    def write(self, work: Callable[[Tx], T], *, again: bool = True) -> T:
        """Run `work` in one transaction and return its result after the commit.

        All writes use this, except those of the committer. `work` must be idempotent: unless `again` is False, it runs
        again, as commands do, while the database is unreachable or if the answer to COMMIT was lost.
        """

        def once() -> T:
            with self.transaction() as tx:
                return work(tx)

        return retry_transaction(once, self.patience_s if again else 0.0, lambda: self.is_closed)

    def expect_writes(self) -> None:  # noqa: B027
        """Prepare for as many transactions at once as `writers`: the first ones should not wait. Returns at once."""

    @property
    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def submit_one(self, task: Columns, event: Columns, then: Callable[[Tx, int], object] | None = None) -> None:
        """Write and commit one new task that is claimable at once, with its ready row and its event.

        The store fills in keys and times. If it takes more with one, it runs `then` before the commit, with the key.
        """

    def submit_several(self, tasks: Columns) -> None:
        """The same for several tasks. Their ids and payloads are lists; the other columns are all lists, or all single
        values."""
        raise StoreError("this store writes tasks one by one")

    def claim_one(self, claim: LoneClaim) -> LoneTask | None:
        """Claim the task that is alone in a queue, if nothing else is to be decided about it. None: claim as usual.

        If the answer of the database is lost, this returns None, too: the usual claim finds the task under the request
        key.
        """
        return None

    def borrow(self, connection: object) -> ForeignTransaction:
        """The transaction that is open on the caller's connection."""
        raise InvalidInput("`connection` needs PostgreSQL, and this database is SQLite: omit it", field="connection")

    @abstractmethod
    def read(self, name: str, /, **params: Any) -> Rows:
        """Run one named query outside of any transaction. Thread-safe."""

    def read_within(self, name: str, /) -> Rows:
        """Like read, for a thread that may be in a transaction. It may not see what that transaction wrote."""
        return self.read(name)

    @abstractmethod
    def read_sql(self, sql: str, /, **params: Any) -> Rows:
        """Run a query that is not in store/sql, with `:name` parameters."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Open a consistent view for several queries."""

    @abstractmethod
    def now(self) -> int: ...

    @abstractmethod
    def version(self) -> int:
        """The number of the last applied migration; 0 for an empty database."""

    @abstractmethod
    def migrate(self) -> list[int]:
        """Apply the missing migrations, under a lock. Returns their numbers."""

    @abstractmethod
    def upto(self, needed: int = 2**63) -> int:
        """The largest event id below which no new event can appear: the feed reads up to it.

        Needs no query if it is already known to be at least `needed`.
        """

    @abstractmethod
    def tail(self) -> int:
        """An event id that is smaller than those of all later commits."""

    @property
    def held_up(self) -> bool:
        """Whether an open transaction keeps the feed from reading later events."""
        return False

    def notify_others(self, work: NewWork[int]) -> None:
        """Notify other processes of a commit and of the work that it adds."""
        return

    def listener(self) -> Listener | None:
        """A listener for commits of other processes, or None."""
        return None

    def work_listener(self, wanted: Callable[[], WantedWork]) -> WorkListener | None:
        """A listener for new work only; None if `listener` reports new work, too."""
        return None

    def run_commit_hooks(self, work: NewWork[int], others_know: bool = False) -> None:
        for hook in self.on_commit:
            hook(work, others_know)

    def integrity(self, *, full: bool, limit_s: float) -> list[str] | None:
        """What is wrong with the database's file; None if that takes longer than the limit. PostgreSQL checks its own
        pages."""
        return []

    def check_file(self) -> None:
        """Raises DatabaseMoved if the path no longer leads to the opened file. PostgreSQL has no file."""
        return

    def named(self, work: NewWork[int]) -> NewWork[Queue]:
        """New work by the names of its queues. If the names cannot be read, it counts as work in any queue."""
        try:
            return work.named(self.names.place)
        except Exception:
            return everywhere()

    def with_work(self, queues: Collection[Queue]) -> set[Queue]:
        """The queues among these that have claimable tasks."""
        keys = self.names.queue_keys(queues)
        return {keys[key] for (key,) in self.read("queues_with_work", keys=list(keys))} if keys else set()

    @abstractmethod
    def close(self) -> None: ...

    def check_version(self) -> None:
        have, want = self.version(), migrations()[-1]
        if have < want:
            fix = f"run `onetray migrate --database {self.address}`"
            raise MigrationNeeded(
                f"the schema is at version {have}, this code needs {want}: {fix}", have=have, want=want
            )
        if have > want:
            raise MigrationNeeded(
                f"the schema is at version {have}, this code knows only {want}: install a newer onetray",
                have=have,
                want=want,
            )
