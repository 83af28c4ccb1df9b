"""Who did what: the actions of people, newest first, from the log.

Workers, the system and plain submits are left out: the index event_batch_audit has only the rows of the log that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onetray.domain.checks import choice, listed, text, whole
from onetray.domain.lifecycle import ABOUT_TOKENS, AUDIT_TYPES, FLOW, STAGE, TASK
from onetray.domain.machine import USER
from onetray.domain.overview import AuditPage
from onetray.domain.token import ADMIN
from onetray.engine.pending_writes import RESCHEDULED, actor
from onetray.engine.reads import DatabaseReads, read
from onetray.engine.retention import JOB_DELETED
from onetray.feed import event_of
from onetray.feed.history import show_events
from onetray.redaction.answers import of_page
from onetray.store.event_log import Entry, decode_batch
from onetray.store.event_rows import EventBatch

REDRIVEN, RETRIED = "task.redriven", "flow.retried"
AGAIN = {TASK.submit.event: REDRIVEN, FLOW.submit.event: RETRIED}
"""What a submit is called that runs a job again."""
ACTIONS = (
    *AUDIT_TYPES, JOB_DELETED, REDRIVEN, RETRIED, TASK.cancel.event, "task.cancel_requested", TASK.resume.event,
    "task.priority_set", RESCHEDULED, STAGE.wait.event, STAGE.approve.event, STAGE.reject.event, STAGE.skip.event,
    STAGE.cancel.event, FLOW.pause.event, FLOW.resume.event, FLOW.cancel.event, "flow.cancel_requested",
    "flow.priority_set",
)  # fmt: skip
"""The types of actions. The index has the same ones."""
PEOPLE = actor(USER, "")
ROWS_PER_READ, MAX_READS, MAX_LIMIT = 200, 10, 1_000
"""How many rows of the log are read at once, and how often; and how many actions a page has."""
LAST = 2**62


class Wanted(NamedTuple):
    """Which actions to read."""

    ns: int | None
    actor: str | None
    types: frozenset[str]

    def has(self, e: Entry) -> bool:
        is_by = e.actor.startswith(PEOPLE) if self.actor is None else e.actor == self.actor
        return is_by and e.type in self.types


class Action(NamedTuple):
    """The same action of one person on one or more entities, in one transaction."""

    first: Entry
    size: int


class AuditApi(DatabaseReads):
    """The engine's read of the audit, on a database."""

    @read(of_page, tokens=ADMIN)
    def audit(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        person: str | None = None,
        types: Sequence[str] = (),
        tokens: bool | None = None,
        namespace: str = "default",
    ) -> AuditPage:
        """What people have done: pauses, approvals, answers, cancels, retries, changed priorities. Newest first.

        A page may be short or empty: the list ends when its `before` is None. `person` is the name of an actor, without
        `user:`; `types` as `queue.paused`. `tokens`: also actions about tokens, which needs the scope `admin`.
        """
        limits = self.config.limits
        wanted = Wanted(
            self.store.names.namespace(text(namespace, "namespace", limits.name_chars)),
            None if person is None else actor(USER, text(person, "person", limits.name_chars)),
            frozenset(choice(name, "types", ACTIONS) for name in listed(types, "types", 0, len(ACTIONS)) or ACTIONS)
            - frozenset(() if tokens else ABOUT_TOKENS),
        )
        self.check(limit=limit)
        actions, next_before = self._scan(
            wanted, LAST if before is None else whole(before, "before", 0, LAST), whole(limit, "limit", 1, MAX_LIMIT)
        )
        return self._page(actions, next_before)

    def _scan(self, wanted: Wanted, before: int, limit: int) -> tuple[list[Action], int | None]:
        """The next actions, and where the scan has ended; None at the end of the log."""
        found: list[Action] = []
        for _ in range(MAX_READS if wanted.ns is not None else 0):
            rows = self.store.read("audited_batches", before=before, limit=ROWS_PER_READ)
            for action in self._actions(rows, before, wanted):
                found.append(action)
                if len(found) == limit:
                    return found, action.first.id
            if len(rows) < ROWS_PER_READ:
                return found, None
            before = rows[-1].id
        return found, None if wanted.ns is None else before

    def _actions(self, rows: list[EventBatch], before: int, wanted: Wanted) -> Iterator[Action]:
        """The actions in rows of the log, the last one first."""
        entries = {row.id: [e for e in decode_batch(row) if e.ns == wanted.ns] for row in rows}
        submits = [e for row in rows if row.type in AGAIN for e in entries[row.id]]
        keys = sorted({e.entity for e in submits} | {e.job for e in submits})
        copies: dict[int, int] = dict(self.store.read("copies_among", keys=keys)) if keys else {}
        for row in rows:
            groups: dict[tuple[str, str | None], list[Entry]] = {}
            for e in entries[row.id]:
                if row.type not in AGAIN or _runs_again(e, copies):
                    groups.setdefault((e.actor, e.cause), []).append(e)
            firsts = [
                Action(group[0]._replace(type=AGAIN.get(row.type, row.type)), len(group)) for group in groups.values()
            ]
            for action in reversed(firsts):
                if action.first.id < before and wanted.has(action.first):
                    yield action

    def _page(self, actions: list[Action], before: int | None) -> AuditPage:
        counts = {action.first.id: action.size for action in actions}
        events = show_events(self.store, [action.first for action in actions])
        return AuditPage([event_of(event) for event in events], [counts[event.id] for event in events], before)


def _runs_again(e: Entry, copies: dict[int, int]) -> bool:
    """Whether a submit runs a job again, by itself: the tasks of a flow that is retried are part of it."""
    is_part = e.job != e.entity and copies.get(e.job) == e.ts
    return e.entity in copies and not is_part
