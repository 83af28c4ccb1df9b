"""Fold the log of a task: the task as it was right after an event.

Owns which fields of a task the log determines. Fields that nothing changes after the submit are taken from the row of
today. A field that the log does not tell is empty, and is listed as unknown. Flows and stages: fold_flows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import orjson

from onetray.domain.actions import actions_by_state
from onetray.domain.errors import StoreError
from onetray.domain.lifecycle import HELD, PAUSED, QUEUED, SUCCEEDED, TASK
from onetray.domain.task import Task
from onetray.engine.pending_writes import DEBOUNCED, RESCHEDULED
from onetray.store.event_log import Entry

CANCEL_REQUESTED, PRIORITY_SET, METADATA_SET = "task.cancel_requested", "task.priority_set", "task.metadata_set"
FLOW_PRIORITY_SET = "flow.priority_set"
SUCCEEDS = (TASK.succeed.event, TASK.carry_over.event)
_SETS_ERROR = (
    TASK.fail.event, TASK.time_out.event, TASK.dead_letter.event, TASK.retry.event, TASK.carry_over_failed.event,
    TASK.carry_over_dead.event,
)  # fmt: skip
_REOPENS = tuple(t.event for t in TASK.transitions if t.reopens)
_SETS_RUN_AT = (*_REOPENS, RESCHEDULED, DEBOUNCED)
_FIELDS_OF_NOTES = {
    CANCEL_REQUESTED: "cancel_requested_at", PRIORITY_SET: "priority", FLOW_PRIORITY_SET: "priority",
    METADATA_SET: "metadata",
}  # fmt: skip
"""The fields of a task that notes determine."""


def facts_of(entry: Entry) -> dict[str, Any]:
    """The payload of an event."""
    facts = orjson.loads(entry.payload) if entry.payload else {}
    return facts if isinstance(facts, dict) else {}


def worker_of(claim: Entry) -> str:
    """The worker that claimed a task."""
    return claim.actor.partition(":")[2]


class Log:
    """The events of one entity, or of several, in order, with a moment: the event after which things are shown."""

    def __init__(self, entries: Iterable[Entry], upto: int) -> None:
        self.upto = upto
        self.entries = sorted(entries, key=lambda e: e.id)
        self.past = [e for e in self.entries if e.id <= upto]
        self.later = [e for e in self.entries if e.id > upto]
        self.moves = [e for e in self.past if e.version is not None]

    def last(self, *types: str) -> Entry | None:
        """The last event of these types up to the moment."""
        return next((e for e in reversed(self.past) if e.type in types), None)

    def next(self, *types: str) -> Entry | None:
        """The first event of these types after the moment."""
        return next((e for e in self.later if e.type in types), None)

    def state_at(self, id_: int) -> str | None:
        """The state of the one entity after the event with this id."""
        return next((e.state for e in reversed(self.entries) if e.version is not None and e.id <= id_), None)

    def require_whole(self, entity: str, id_: str, version: int) -> None:
        """Raise StoreError if a transition is missing."""
        versions = [e.version for e in self.entries if e.version is not None]
        missing = sorted(set(range(1, version + 1)).difference(versions))
        if missing:
            raise StoreError(
                f"the log lacks version {missing[0]} of {entity} {id_}: run `onetray verify` on the database",
                id=id_, missing=missing[:100],
            )  # fmt: skip


class Unknown(Exception):
    """The log does not tell the value of a field."""


class TaskNow(Protocol):
    """What the fold needs of the task of today: a `Task`, or a row of it."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def run_at(self) -> int: ...
    @property
    def cancel_requested_at(self) -> int | None: ...
    @property
    def input(self) -> Any: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> Any: ...
    @property
    def metadata(self) -> Any: ...
    @property
    def unmet(self) -> int: ...
    @property
    def name(self) -> str | None: ...


class FoldedTask(NamedTuple):
    task: Task
    unknown: list[str]


class TaskParts(NamedTuple):
    """What decides about a task of a flow besides its own events."""

    flow_log: Sequence[Entry] = ()
    """The events of its flow."""
    needs: Collection[int] = ()
    """The tasks that it depends on."""
    met: Collection[int] | None = ()
    """Tasks that had succeeded; None if that is unknown."""
    name: str | None = None
    """Its name before a redrive gave it to its successor."""


def fold_task(now: Task, entries: Iterable[Entry], upto: int, parts: TaskParts, pruned: Collection[str]) -> FoldedTask:
    """A task as it was after the event `upto`. `now` is the task of today, `pruned` the types of notes that the
    janitor deletes."""
    log = Log(entries, upto)
    values, unknown = fold_values(now, log, parts, pruned)
    if log.next(DEBOUNCED):
        # Only the last payload is stored.
        values["payload"], unknown = None, sorted([*unknown, "payload"])
    not_now = actions_by_state(TASK.entity, values["state"], now.actor)
    return FoldedTask(replace(now, **values, not_now=not_now), unknown)


def fold_values(
    now: TaskNow, log: Log, parts: TaskParts, pruned: Collection[str]
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """The values of the fields that events change, and the names of those that the log does not tell."""
    log.require_whole(TASK.entity, now.id, now.version)
    last = log.moves[-1]
    state = str(last.state)
    start, claim, hold = log.last(TASK.start.event), log.last(TASK.claim.event), last if state in PAUSED else None
    values: dict[str, Any] = {
        "state": state, "version": last.version, "fence": last.fence, "attempts": last.attempts,
        "updated_at": last.ts, "started_at": start.ts if start else None,
        "finished_at": last.ts if state in TASK.terminal else None,
        "owner": worker_of(claim) if claim and state in HELD else None,
        "lease": None, "lease_expires_at": None, "held_by": facts_of(hold).get("held_by") if hold else None,
        "held_why": hold.cause if hold else None, "result": now.result if state == SUCCEEDED else None,
        "name": now.name or parts.name,
    }  # fmt: skip
    unknown = ["lease", "lease_expires_at"] if state in HELD else []
    unknown += [name for type_, name in _FIELDS_OF_NOTES.items() if type_ in pruned]
    for name, find in _FOUND.items():
        try:
            values[name] = find(now, log, parts)
        except Unknown:
            unknown.append(name)
    empty = {name: _EMPTY.get(name) for name in unknown}
    return values | empty, sorted(set(unknown))


_EMPTY = {"priority": 0, "run_at": 0, "unmet": 0}
"""The values of unknown fields that cannot be None."""


def _unmet(now: TaskNow, log: Log, parts: TaskParts) -> int:
    if log.moves[-1].state != QUEUED or log.last(TASK.claim.event):
        return now.unmet
    if parts.needs and parts.met is None:
        raise Unknown
    return len(set(parts.needs).difference(parts.met or ()))


def _error(now: TaskNow, log: Log, _: TaskParts) -> Any:
    setter = log.last(*_SETS_ERROR, TASK.succeed.event)
    if setter is None or setter.type == TASK.succeed.event:
        return None
    facts = facts_of(setter)
    if "error" in facts:
        return facts["error"]
    if log.next(*_SETS_ERROR, TASK.succeed.event):
        raise Unknown
    return now.error


def _run_at(now: TaskNow, log: Log, _: TaskParts) -> Any:
    setter, later = log.last(*_SETS_RUN_AT), log.next(*_SETS_RUN_AT)
    if setter is not None and "run_at" in facts_of(setter):
        return facts_of(setter)["run_at"]
    if later is None:
        return now.run_at
    if setter is not None:
        raise Unknown
    return _fact(later, "was" if later.type in (RESCHEDULED, DEBOUNCED) else "run_at_was")


def _fact(entry: Entry, name: str) -> Any:
    """A fact of an event's payload. Older versions have not written all of them."""
    try:
        return facts_of(entry)[name]
    except KeyError:
        raise Unknown from None


def _priority(now: TaskNow, log: Log, parts: TaskParts) -> Any:
    own = [e for e in log.entries if e.type == PRIORITY_SET]
    # That of a flow applies to the tasks that are queued then.
    of_flow = [e for e in parts.flow_log if e.type == FLOW_PRIORITY_SET and log.state_at(e.id) == QUEUED]
    changes = Log([*own, *of_flow], log.upto)
    if changes.past:
        return _fact(changes.past[-1], "priority")
    if not changes.later:
        return now.priority
    if changes.later[0].type == FLOW_PRIORITY_SET:
        raise Unknown
    return _fact(changes.later[0], "was")


def _cancel_requested_at(now: TaskNow, log: Log, _: TaskParts) -> Any:
    return now.cancel_requested_at if log.last(CANCEL_REQUESTED) else None


def _input(now: TaskNow, log: Log, _: TaskParts) -> Any:
    """Only the last input is stored: the log says which resumes had one."""
    given = [facts_of(e).get("answered", now.input is not None) for e in log.past if e.type == TASK.resume.event]
    if not any(given):
        return None
    if any(facts_of(e).get("answered", True) for e in log.later if e.type == TASK.resume.event):
        raise Unknown
    return now.input


def _metadata(now: TaskNow, log: Log, _: TaskParts) -> Any:
    if any(e.type == METADATA_SET or (e.state is not None and facts_of(e).get("metadata")) for e in log.later):
        raise Unknown
    return now.metadata


_FOUND: dict[str, Callable[[TaskNow, Log, TaskParts], Any]] = {
    "error": _error, "run_at": _run_at, "priority": _priority, "cancel_requested_at": _cancel_requested_at,
    "input": _input, "metadata": _metadata, "unmet": _unmet,
}  # fmt: skip
"""The fields that another event than the last transition may have set."""
