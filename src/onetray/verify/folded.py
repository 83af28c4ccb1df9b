"""Fold the log of the newest tasks, and compare what it tells with their rows.

Owns which fields are compared: those that the .sql files of this package do not compare with events. What is wrong with
the log itself is reported by them: here such a task is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from onetray.domain.errors import StoreError
from onetray.domain.task import json_of
from onetray.engine.fold import FLOW_PRIORITY_SET, Log, TaskParts, fold_values
from onetray.store.base import Snapshot
from onetray.store.event_log import Entry, entry_at
from onetray.store.event_rows import EventBatch
from onetray.store.sql_template import fill
from onetray.verify.checks import WORDS, Check

SAMPLE = 200
"""How many tasks are compared: the newest ones."""
FOLDED = Check(
    16,
    "folded",
    f"the log tells the run_at, the priority and the error of the newest {SAMPLE} tasks, and why one is held",
)
_COMPARED = ("run_at", "priority", "error", "held_why")
_TASKS = """
SELECT t.key, t.job, CAST(t.id AS text) AS id, t.version, t.priority, t.run_at, t.cancel_at AS cancel_requested_at,
    t.input, t.result, t.error, t.metadata, t.unmet, t.name, t.held_why, {all_events:t} AS events
FROM onetray.task AS t ORDER BY t.key DESC LIMIT {sample}
"""
_BATCH = f"SELECT DISTINCT {', '.join(f'eb.{name}' for name in EventBatch._fields)} FROM "
_LISTED = (
    f"WITH v(id) AS (VALUES {{ids}}) {_BATCH} v JOIN onetray.event_batch AS eb "
    "ON eb.id = (SELECT max(x.id) FROM onetray.event_batch AS x WHERE x.id <= v.id)"
)
_NOTES = f"{_BATCH} onetray.event_batch AS eb WHERE eb.state IS NULL AND eb.entity IN ({{keys}})"
_DAMAGES = (StoreError, ValueError, KeyError, IndexError, TypeError)


class FoldedRow(NamedTuple):
    """A task, with its JSON parsed."""

    key: int
    job: int
    id: str
    version: int
    priority: int
    run_at: int
    cancel_requested_at: int | None
    input: Any
    result: Any
    error: Any
    metadata: Any
    unmet: int
    name: str | None
    held_why: str | None
    events: list[int]


def broken_folds(snapshot: Snapshot, dialect: str) -> list[dict[str, Any]]:
    """The tasks whose rows differ from what their log tells."""
    rows = snapshot.select(fill(_TASKS, {**WORDS[dialect], "sample": str(SAMPLE)}))
    tasks = [task for row in rows if (task := _task(row)) is not None]
    if not tasks:
        return []
    listed = _listed(snapshot, [id_ for task in tasks for id_ in task.events])
    notes = _notes(snapshot, {key for task in tasks for key in (task.key, task.job)})
    return [row for task in tasks if (row := _differing(task, listed, notes)) is not None]


def _task(row: dict[str, Any]) -> FoldedRow | None:
    try:
        parsed = {name: json_of(row[name]) for name in ("input", "result", "error", "metadata")}
        return FoldedRow(**row | parsed | {"events": [int(id_) for id_ in row["events"].split(",")]})
    except _DAMAGES:
        return None


def _listed(snapshot: Snapshot, ids: list[int]) -> dict[int, Entry]:
    """The events with these ids, as far as they can be read."""
    batches = [EventBatch(**row) for row in snapshot.select(_LISTED.format(ids=", ".join(f"({id_})" for id_ in ids)))]
    rows = {id_: batch for batch in batches for id_ in range(batch.id, batch.id + batch.size)}
    return {entry.id: entry for id_ in ids if id_ in rows and (entry := _entry(rows[id_], id_)) is not None}


def _notes(snapshot: Snapshot, keys: Iterable[int]) -> dict[int, list[Entry]]:
    notes: dict[int, list[Entry]] = {}
    for row in snapshot.select(_NOTES.format(keys=", ".join(map(str, keys)))):
        entry = _entry(EventBatch(**row), row["id"])
        if entry is not None:
            notes.setdefault(entry.entity, []).append(entry)
    return notes


def _entry(batch: EventBatch, id_: int) -> Entry | None:
    try:
        entry = entry_at(batch, id_)
        orjson.loads(entry.payload or "null")
        return entry
    except _DAMAGES:
        return None


def _differing(task: FoldedRow, listed: dict[int, Entry], notes: dict[int, list[Entry]]) -> dict[str, Any] | None:
    own = [listed[id_] for id_ in task.events if id_ in listed]
    if any(e.entity != task.key for e in own):
        return None
    log = Log([*own, *notes.get(task.key, ())], upto=2**62)
    of_flow = [e for e in notes.get(task.job, ()) if e.type == FLOW_PRIORITY_SET] if task.job != task.key else []
    try:
        log.require_whole("task", task.id, task.version)
        values, unknown = fold_values(task, log, TaskParts(of_flow, met=None), ())
    except _DAMAGES:
        return None
    names = [name for name in _COMPARED if name not in unknown and values[name] != getattr(task, name)]
    if not names:
        return None
    pairs = {f"{side}_{name}": value for name in names
             for side, value in (("row", getattr(task, name)), ("log", values[name]))}  # fmt: skip
    return {"task": task.key, "id": task.id, **pairs}
