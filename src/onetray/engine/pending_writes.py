"""Collect the moves of a batch, so that each transition is one statement.

Owns the columns that `tx.move` needs, and the ready and due rows that follow from a move. The verbs decide the moves.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID, uuid5

import orjson

from onetray.domain.clock import SECOND
from onetray.domain.lifecycle import HELD, NO_ENTITY, QUEUED, TASK
from onetray.domain.machine import Transition
from onetray.engine.dead_letters import NewDeadLetter, write_dead_letters
from onetray.store.base import Tx
from onetray.store.event_log import NOTE
from onetray.store.rows import TaskRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

RUN, QUEUE_TTL, DEADLINE, TIMEOUT, CANCEL = "run", "queue_ttl", "deadline", "timeout", "cancel"
FLOW_DEADLINE, APPROVAL, CASCADE, OPEN_STAGE = "flow_deadline", "approval", "cascade", "open_stage"
DELETE = "delete"
"""What the janitor does for a due row. Those from the second line on are for flows and stages."""

RESCHEDULED, DEBOUNCED = "task.rescheduled", "task.debounced"


def actor(kind: str, name: str) -> str:
    return f"{kind}:{name}"


ENGINE = actor("system", "engine")


def event_detail(**facts: Any) -> str:
    """The payload of an event, as JSON, without the facts that are None."""
    return orjson.dumps({k: v for k, v in facts.items() if v is not None}).decode()


def reopening(row: TaskRow, run_at: int, **facts: Any) -> str:
    """The payload of an event that returns a task to its queue: with its `run_at`, the first one also with that of the
    submit, so that the log has each of them."""
    return event_detail(**facts, run_at=run_at, run_at_was=row.run_at if row.fence == 1 else None)


_SUBJECTS = UUID("5f0c2b5e-6a0f-4a57-9d0b-2f6a1c7d9e31")


def record_change(
    tx: Tx, ns: int, type_: str, by: str, cause: str | None = None, *, about: tuple[str, str], **facts: Any
) -> None:
    """Write the event of a change of a queue, a breaker or a token. `about`: what has changed, as ("queue", "mail").

    All events about the same thing have the same entity id, which is that of no job.
    """
    what, name = about
    tx.record({
        "entity": [NO_ENTITY], "job": None, "ts": tx.now, "ns": ns, "fence": 0, "attempts": 0, "trace": None,
        "type": type_, "actor": by, "cause": cause,
        "payload": event_detail(id=str(uuid5(_SUBJECTS, f"{ns} {what} {name}")), **{what: name}, **facts), **NOTE,
    })  # fmt: skip


def once(values: list[Any]) -> Any:
    """A column as one value if all rows have the same, else unchanged."""
    return values[0] if values.count(values[0]) == len(values) else values


_GIVE_BACK = (TASK.release, TASK.block, TASK.wait_for_input)
"""The transitions that always return their attempt."""


class HasKey(Protocol):
    """A task that is written: its row, or what it was submitted with."""

    @property
    def key(self) -> int: ...


class PendingWrites:
    """The moves, and the rows that go with them, of commands of one verb, in columns."""

    def __init__(self, batch: BatchContext) -> None:
        self._tx = batch.tx
        self._locked, self._limits = batch.locked, batch.limit_changes
        self._moves: dict[tuple[Transition, ...], dict[str, list[Any]]] = {}
        self._rows: dict[str, dict[str, list[Any]]] = {}
        self._notes: dict[str, list[Any]] = {}
        self.letters: list[NewDeadLetter] = []

    def add(
        self,
        transition: Transition,
        row: TaskRow,
        by: str,
        *,
        at: int | None = None,
        cause: str | None = None,
        trace: str | None = None,
        detail: str | None = None,
        **columns: Any,
    ) -> TaskRow:
        """Add the move of a task. Returns its row after the move."""
        batch = self._moves.setdefault((transition,), defaultdict(list))
        at = max(self._tx.now if at is None else at, row.updated_at)
        given_back = columns.get("given_back", int(transition in _GIVE_BACK))
        # A task that is carried over has those of its predecessor.
        attempts = columns.setdefault("attempts", row.attempts - given_back)
        for name, value in (
            ("key", row.key), ("version", row.version), ("fence", row.fence), ("was", row.state), ("at", at),
            ("actor", by), ("cause", cause), ("trace", trace), ("detail", detail), ("job", row.job), ("ns", row.ns),
            *columns.items(),
        ):  # fmt: skip
            batch[name].append(value)
        moved = row._replace(state=transition.target, version=row.version + 1, attempts=attempts, updated_at=at)
        if row.stage is not None:
            self._locked.count_move(
                row, transition.target, started=transition is TASK.start, given_back=given_back,
                error=columns.get("error"),
            )  # fmt: skip
        if transition.reopens:
            moved = moved._replace(fence=row.fence + 1, run_at=columns["run_at"])
            if row.stage is None or not self._locked.holds_back(moved):
                self.enter_queue(moved)
        if transition.target not in HELD:
            self._limits.give_back(row)
            moved = moved._replace(owner=None, lease=None, lease_expires_at=None, slots=None)
        if row.state == QUEUED and transition.target != QUEUED:
            self.put("delete_ready", queue=row.line, rank=-row.priority, key=row.key, kind=row.kind)
        return moved

    def enter_queue(self, row: TaskRow) -> None:
        """Make a queued task claimable now, or add a due row for later."""
        if row.run_at <= self._tx.now:
            self.put("insert_ready", queue=row.line, rank=-row.priority, key=row.key, kind=row.kind)
        else:
            self.due(row.run_at, row.key, RUN, row.fence)
        ttl_s = self._tx.names.policy(row.policy).queue_ttl_s
        if ttl_s is not None:
            self.due(max(row.run_at, self._tx.now) + int(ttl_s * SECOND), row.key, QUEUE_TTL, row.fence)

    def due_now(self, key: int, what: str) -> None:
        """Write a due row now: the janitor does the rest of a bounded step."""
        self._tx.batch("insert_due", {"at": [self._tx.now], "key": [key], "what": [what], "fence": [0]})

    def due(self, at: int, key: int, what: str, fence: int) -> None:
        self.put("insert_due", at=at, key=key, what=what, fence=fence)

    def note(
        self, row: HasKey, type_: str, by: str, *, cause: str | None, trace: str | None, payload: str | None
    ) -> None:
        self._notes = self._notes or defaultdict(list)
        for name, value in (
            ("key", row.key), ("type", type_), ("at", self._tx.now), ("actor", by), ("cause", cause), ("trace", trace),
            ("payload", payload),
        ):  # fmt: skip
            self._notes[name].append(value)

    def put(self, statement: str, **columns: Any) -> None:
        batch = self._rows.setdefault(statement, defaultdict(list))
        for name, value in columns.items():
            batch[name].append(value)

    def flush(self) -> None:
        """Write everything: moves first, then the rows that depend on them."""
        for hops, columns in self._moves.items():
            self._tx.move(hops, columns)
        for statement, columns in self._rows.items():
            self._tx.batch(statement, columns)
            if statement in ("insert_ready", "promote_ready"):
                self._limits.enter(columns)
        if self._notes:
            self._tx.note("insert_note", self._notes)
        if self.letters:
            write_dead_letters(self._tx, self.letters)
        self._moves, self._rows, self._notes, self.letters = {}, {}, {}, []
