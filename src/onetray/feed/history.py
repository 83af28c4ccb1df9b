"""Read events from the rows of the log: of a task, of a flow, of a window of the log.

Owns how an event is shown. The store encodes the rows (store/event_log.py); the feed decides how far to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import orjson

from onetray.domain.checks import id_or_none
from onetray.domain.task import Event
from onetray.store.base import Store
from onetray.store.event_log import Entry, decode_batch, entry_at
from onetray.store.event_rows import EntityEventRow, EventBatch, EventEntityRow, TaskEventRow

FIRST_ROWS = 16
"""How many rows of the log a page reads at first: one may have a thousand events, or a single one."""
LAST = 2**62


def events_of_task(
    store: Store, id_: str, namespace: str, after: int, limit: int, before: int | None = None
) -> list[Event]:
    """One task's history, in order, without the feed's barrier: its first events after one, or the last before one.

    Empty if there is no such task."""
    found = {"id": id_, "namespace": namespace, "after": after, "limit": limit}
    if before is None:
        rows = store.read("batches_of_task", **found)
    else:
        rows = store.read("last_batches_of_task", before=before, **found)[::-1]
    events = []
    for row in rows:
        e = entry_at(batch_of(row), row.event)
        events.append(Event(
            e.id, row.flow_id or id_, id_, e.type, e.ts, e.actor, row.correlation_id or id_, e.cause,
            e.trace or row.task_trace, e.payload, e.version, e.was, e.state, e.fence, e.attempts, namespace,
        ))  # fmt: skip
    return events


def events_of_entities(store: Store, keys: Sequence[int], after: int, limit: int) -> list[Event]:
    """The events of tasks, stages and flows, without those of the tasks of the flows."""
    rows = store.read("batches_of_entities", keys=list(keys), after=after, limit=limit)
    return show_events(store, _entries(rows))


def events_of_flows(
    store: Store, keys: Sequence[int], after: int, limit: int, *, upto: int = LAST, types: Sequence[str] | None = None
) -> tuple[list[Event], int]:
    """The events of flows, their stages and their tasks, in order, and how far it has read."""
    rows = store.read(
        "batches_of_flows", keys=list(keys), after=after, upto=upto, limit=limit + 1, every=int(types is None),
        types=list(types or ()),
    )  # fmt: skip
    jobs = frozenset(keys)
    entries = (e for row in rows for e in decode_batch(row) if e.job in jobs and after < e.id <= upto)
    found = _first(entries, limit)
    return show_events(store, found), found[-1].id if found and len(found) == limit else upto


def last_events_of_flow(store: Store, key: int, after: int, before: int, limit: int) -> list[Event]:
    """The last events of a flow, its stages and its tasks before an event, in order."""
    # The first of these rows may have only later events.
    rows = store.read("last_batches_of_flow", job=key, before=before, limit=limit + 1)
    entries = (e for row in rows for e in reversed(list(decode_batch(row))) if e.job == key and after < e.id < before)
    return show_events(store, _first(entries, limit)[::-1])


def events_by_correlation(store: Store, correlation_id: str, namespace: str, after: int, limit: int) -> list[Event]:
    """The events of all jobs with a correlation id, in order."""
    jobs = store.read(
        "keys_by_correlation", correlation_id=correlation_id, id=id_or_none(correlation_id), namespace=namespace
    )
    tasks, flows = ([job.key for job in jobs if job.is_flow == is_flow] for is_flow in (0, 1))
    events = events_of_entities(store, tasks, after, limit) if tasks else []
    if flows:
        events += events_of_flows(store, flows, after, limit)[0]
    return sorted(events, key=lambda event: event.id)[:limit]


def events_between(store: Store, after: int, upto: int, limit: int) -> tuple[list[Event], int]:
    """The first events of the log after a cursor, and how far it has read: an event may be gone before it is shown."""
    found: list[Entry] = []
    last, rows_wanted = after, FIRST_ROWS
    while len(found) < limit:
        rows = _batches(store, last, upto, rows_wanted, rows_wanted, None, None)
        entries = (e for row in rows for e in decode_batch(row) if last < e.id <= upto)
        found += _first(entries, limit - len(found))
        if len(rows) < rows_wanted:
            break
        last = rows[-1].id + rows[-1].size - 1
        size = sum(row.size for row in rows) / len(rows)
        rows_wanted = 1 + max(FIRST_ROWS, int((limit - len(found)) / size))
    return show_events(store, found), found[-1].id if len(found) == limit else upto


def find_events(
    store: Store, after: int, upto: int, limit: int, scan: int, ns: int | None, types: Sequence[str] | None
) -> tuple[list[Event], int]:
    """The events of a namespace, or of some types, among the next rows of the log; and how far it has read."""
    rows = _batches(store, after, upto, scan, limit + 1, ns, types)
    entries = (e for row in rows for e in decode_batch(row) if after < e.id <= upto and (ns is None or e.ns == ns))
    found = _first(entries, limit)
    events = show_events(store, found)
    if len(found) == limit:
        return events, found[-1].id
    if len(rows) > limit:
        return events, rows[-1].id + rows[-1].size - 1
    ((end,),) = store.read("end_of_window", after=after, upto=upto, scan=scan)
    return events, upto if end is None else min(int(end), upto)


def _batches(
    store: Store, after: int, upto: int, scan: int, limit: int, ns: int | None, types: Sequence[str] | None
) -> list[EventBatch]:
    rows: list[EventBatch] = store.read(
        "batches_after", after=after, upto=upto, scan=scan, limit=limit, ns=ns, every=int(types is None),
        types=list(types or ()),
    )  # fmt: skip
    return rows


def _entries(rows: Iterable[EntityEventRow]) -> list[Entry]:
    return [entry_at(batch_of(row), row.event) for row in rows]


def batch_of(row: EntityEventRow | TaskEventRow) -> EventBatch:
    return EventBatch(
        row.id, row.size, row.ts, row.ns, row.type, row.was, row.state, row.actor, row.entity, row.job, row.version,
        row.fence, row.attempts, row.cause, row.trace, row.payload, row.varied,
    )  # fmt: skip


def _first(entries: Iterator[Entry], limit: int) -> list[Entry]:
    return list(islice(entries, limit))


def show_events(store: Store, entries: list[Entry]) -> list[Event]:
    """Entries of the log as events, without those of entities that were deleted meanwhile."""
    known = _known(store, {entry.entity for entry in entries} | {entry.job for entry in entries})
    namespaces = {ns: store.names.namespace_name(ns) for ns in {entry.ns for entry in entries}}
    return [event for e in entries if (event := _event(e, known, namespaces[e.ns])) is not None]


def _known(store: Store, keys: set[int]) -> dict[int, EventEntityRow]:
    """The tasks, stages and flows with these keys. Mostly they are tasks, so nothing else is looked up at first."""
    known: dict[int, EventEntityRow] = {}
    for statement in ("tasks_of_events", "parents_of_events"):
        if missing := keys - known.keys():
            known |= {row.key: row for row in store.read(statement, keys=sorted(missing))}
    return known


def _event(e: Entry, known: dict[int, EventEntityRow], namespace: str | None) -> Event | None:
    if namespace is None:
        return None
    entity = known.get(e.entity)
    job = entity if e.job == e.entity else known.get(e.job)
    if entity is None or job is None:
        # Only the note of its deletion outlives a job, and says what it was.
        facts: dict[str, Any] = orjson.loads(e.payload) if e.payload and e.state is None else {}
        if "id" not in facts or e.entity != e.job:
            return None
        entity = job = EventEntityRow(e.entity, facts["id"], facts.get("correlation_id", facts["id"]), None, 0)
    # Unpacked: a page has a thousand of them.
    id_, _, _, ts, _, type_, was, state, actor, version, fence, attempts, cause, trace, payload = e
    return Event(
        id_, job.id, entity.id, type_, ts, actor, entity.correlation_id, cause, trace or entity.trace, payload,
        version, was, state, fence, attempts, namespace,
    )  # fmt: skip
