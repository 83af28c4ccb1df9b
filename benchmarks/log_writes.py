"""The history of a drain, written by hand: submits, claims, and reports that start and finish what was claimed.

Owns what both databases share: the moves, their transactions, and what of them is logged. The tables are those of the
first released schema, which never changes; a log in batches is a table beside them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import sub
from typing import Any, NamedTuple

from benchmarks.limit import ACTOR, SUBMITTER
from benchmarks.log_reads import BatchReads, RowReads
from benchmarks.log_shapes import Columns, Encoding, Move

SUBMITTED = Move("task.submitted", None, "queued", SUBMITTER)
CLAIMED = Move("task.claimed", "queued", "assigned", ACTOR)
STARTED = Move("task.started", "assigned", "running", ACTOR)
SUCCEEDED = Move("task.succeeded", "running", "succeeded", ACTOR)
SCHEMA = 6
NS = QUEUE = KIND = POLICY = LEASE = 1
"""The keys of the only namespace, queue and kind."""
MOVE_COLUMNS = ("id", "count", "ts", "ns", *Move._fields)
_BATCH = """
CREATE TABLE onetray.event_batch (
    id bigint PRIMARY KEY, count integer NOT NULL, ts bigint NOT NULL, ns integer NOT NULL, type text NOT NULL,
    was text, state text, actor text NOT NULL, job bigint, cause text, trace text, payload text, {columns}
)"""
_BATCH_INDEXES = ["CREATE INDEX event_batch_type_ts ON onetray.event_batch (type, ts)"]
_NOTES = "CREATE INDEX event_batch_note ON onetray.event_batch (entity, id) WHERE version IS NULL AND count = 1"


class Held(NamedTuple):
    """A claimed task."""

    key: int
    fence: int


Moved = tuple[int, int, int, int, int, int]
"""Key, version, fence, attempts and time of a task after a move, and its last event before it."""


class Log(ABC):
    """A database whose log has one of the encodings."""

    store: str

    def __init__(self, encoding: Encoding) -> None:
        self.encoding, self.shape = encoding, encoding.shape
        self.keys = self.events = 0
        """The last ones that were handed out: nobody else writes."""
        self.query("INSERT INTO onetray.namespace (name) VALUES ('default')")
        for statement in self._tables():
            self.query(statement)
        columns = [*MOVE_COLUMNS, *(self.shape.columns[self.store] if self.shape else ())]
        self._insert = (
            f"INSERT INTO onetray.event_batch ({', '.join(columns)}) VALUES ({', '.join(f':{c}' for c in columns)})"
        )
        self._columns = columns
        reads = RowReads(self.store, self.query) if self.shape is None else BatchReads(self.store, encoding, self.query)
        self.history, self.page = reads.history, reads.page

    def _tables(self) -> list[str]:
        if self.shape is None:
            return []
        columns = self.shape.columns[self.store]
        typed = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        notes = [_NOTES] if "entity" in columns else []
        link = "events text" if self.encoding.ids else "last_event bigint"
        return [
            _BATCH.format(columns=typed), *_BATCH_INDEXES, *notes, f"ALTER TABLE onetray.task ADD COLUMN {link}",
        ]  # fmt: skip

    def submit(self, ranks: Sequence[int]) -> None:
        count, now = len(ranks), now_us()
        first, self.keys = self.keys + 1, self.keys + count
        with self.transaction():
            event = self._take(count)
            self.insert_tasks(first, ranks, event, now)
            one, none = (1,) * count, (0,) * count
            self._write(event, SUBMITTED, [tuple(range(first, first + count)), one, one, none, (now,) * count, none])

    def claim(self, limit: int) -> list[Held]:
        with self.transaction():
            event = self._take(0)
            moved = self.assign(limit, event, now_us())
            self._take(len(moved))
            if moved:
                *columns, last = zip(*moved, strict=True)
                self._write(event, CLAIMED, [*columns, _back(event, last)])
        return [Held(task[0], task[2]) for task in moved]

    def report(self, held: Sequence[Held]) -> None:
        count = len(held)
        with self.transaction():
            event = self._take(2 * count)
            moved = self.succeed(held, event, now_us())
            if self.shape is None:
                return
            keys, version, *columns, last = zip(*moved, strict=True)
            before = tuple(number - 1 for number in version)
            self._write(event, STARTED, [keys, before, *columns, _back(event, last)])
            self._write(event + count, SUCCEEDED, [keys, version, *columns, (count,) * count])

    def _take(self, count: int) -> int:
        """So many event ids that follow each other: the first."""
        first = self.events + 1
        self.events += count
        return first

    def _write(self, first: int, move: Move, columns: Columns) -> None:
        if self.shape is None:  # The statement of the move has written a row for each event.
            return
        *told, back = columns
        # An event that finds the others through the task's row leads to none.
        encoded = self.shape.encode(self.store, [*told, (0,) * len(back) if self.encoding.ids else back])
        values = [first, len(back), told[-1][0], NS, *move, *encoded]
        self.query(self._insert, **dict(zip(self._columns, values, strict=True)))

    @abstractmethod
    def query(self, sql: str, **given: Any) -> list[Any]:
        """Run a statement; its rows."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Commit what happens inside."""

    @abstractmethod
    def insert_tasks(self, first: int, ranks: Sequence[int], event: int, now: int) -> None:
        """Tasks with keys from `first` on, that can be claimed."""

    @abstractmethod
    def assign(self, limit: int, event: int, now: int) -> list[Moved]:
        """Claim, in the order of the keys: the first task gets this event, the next one the next."""

    @abstractmethod
    def succeed(self, held: Sequence[Held], event: int, now: int) -> list[Moved]:
        """Start and finish, in the order given: each task gets two events."""

    @abstractmethod
    def log_bytes(self) -> int:
        """What the log and its indexes take."""

    @abstractmethod
    def close(self) -> None: ...


def _back(event: int, last: tuple[int, ...]) -> tuple[int, ...]:
    """How far events from this one on are from those before them."""
    return tuple(map(sub, range(event, event + len(last)), last))


def now_us() -> int:
    return time.time_ns() // 1000
