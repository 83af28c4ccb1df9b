"""Reads of a log by hand: one task's history, and a page of the feed, as events. The same on both databases.

Owns what is read, for a row for each event and for rows of many. The statements for the first are those that the
product had while its log had this shape, with all their joins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.log_shapes import Encoding, Entry, Shape
from onetray.domain.task import Event

Query = Callable[..., list[Any]]
"""Runs a statement with parameters by name."""
Numbered = tuple[int, Entry]
"""An event's id, and what it says about its task."""
BATCHES = 4
"""Rows of the log that are read at a time: mostly they have a page of events."""

_SHOWN = """
e.id, CASE WHEN e.job = t.key THEN CAST(t.id AS text) ELSE coalesce(
        (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = e.job), {deleted_id}) END,
    CASE WHEN t.key IS NOT NULL THEN CAST(t.id AS text) ELSE coalesce(
        (SELECT CAST(f.id AS text) FROM onetray.flow AS f WHERE f.key = e.entity),
        (SELECT CAST(s.id AS text) FROM onetray.stage AS s WHERE s.key = e.entity), {deleted_id}) END,
    e.type, e.ts, e.actor, coalesce(e.correlation_id, CAST(t.id AS text)), e.cause, e.trace, e.payload,
    e.version, e.was, e.state, e.fence, e.attempts, n.name"""
_DELETED_ID = "CASE WHEN e.type = 'job.deleted' THEN CAST(e.payload AS {json}) ->> 'id' END"
_JOINS = "LEFT JOIN onetray.task AS t ON t.key = e.entity JOIN onetray.namespace AS n ON n.key = e.ns"
_ROWS_HISTORY = """
SELECT {shown} FROM onetray.event AS e {joins}
WHERE e.entity = :key AND e.id + 0 > :after ORDER BY e.id + 0 LIMIT :limit"""
_ROWS_PAGE = """
SELECT {shown} FROM (
    SELECT * FROM onetray.event WHERE id > :after ORDER BY id LIMIT :limit
) AS e {joins}
WHERE e.id <= :upto AND (CAST(:namespace AS text) IS NULL OR n.name = :namespace) AND CAST(:every AS integer) = 1
ORDER BY e.id LIMIT :limit"""

_COMMON = "b.id, b.count, b.ts, n.name, b.type, b.was, b.state, b.actor, b.cause, b.trace, b.payload"
_AT = "JOIN onetray.event_batch AS b ON b.id = (SELECT max(m.id) FROM onetray.event_batch AS m WHERE m.id <= {event})"
_CHAIN = """
WITH RECURSIVE chain(event, batch, back) AS (
    SELECT t.last_event, b.id, {last_back} FROM onetray.task AS t {at_last} WHERE t.key = :key
    UNION ALL
    SELECT c.event - c.back, b.id, {back} FROM chain AS c {at_back} WHERE c.back > 0
)
SELECT CAST(t.id AS text), t.correlation_id, c.event, {columns}
FROM chain AS c JOIN onetray.event_batch AS b ON b.id = c.batch JOIN onetray.task AS t ON t.key = :key
    JOIN onetray.namespace AS n ON n.key = b.ns
ORDER BY c.event"""
_BY_IDS = """
SELECT CAST(t.id AS text), t.correlation_id, p.event, {columns}
FROM onetray.task AS t {ids} {at_id} JOIN onetray.namespace AS n ON n.key = b.ns
WHERE t.key = :key ORDER BY p.event"""
_IDS = {
    "postgres": "CROSS JOIN LATERAL unnest(CAST(string_to_array(t.events, ',') AS bigint[])) AS p(event)",
    "sqlite": "CROSS JOIN (SELECT value AS event FROM json_each("
    "'[' || (SELECT events FROM task WHERE key = :key) || ']')) AS p",
}
_TASK = "SELECT id, correlation_id, last_event FROM task WHERE key = :key"
_ROW = """
SELECT {columns} FROM event_batch AS b JOIN namespace AS n ON n.key = b.ns
WHERE b.id <= :event ORDER BY b.id DESC LIMIT 1"""
_BATCHES = """
SELECT {columns} FROM onetray.event_batch AS b JOIN onetray.namespace AS n ON n.key = b.ns
WHERE b.id >= coalesce((SELECT max(m.id) FROM onetray.event_batch AS m WHERE m.id <= :next), 0)
ORDER BY b.id LIMIT :rows"""
_TASKS = {
    "postgres": "SELECT key, CAST(id AS text), correlation_id FROM onetray.task WHERE key = ANY(:keys)",
    "sqlite": "SELECT key, id, correlation_id FROM task WHERE key IN (SELECT value FROM json_each(:keys))",
}


class RowReads:
    """A log that has a row for each event."""

    def __init__(self, store: str, query: Query) -> None:
        deleted_id = _DELETED_ID.format(json="json" if store == "postgres" else "text")
        words = {"shown": _SHOWN.format(deleted_id=deleted_id), "joins": _JOINS}
        self._history, self._page = _ROWS_HISTORY.format(**words), _ROWS_PAGE.format(**words)
        self._query = query

    def history(self, key: int) -> list[Event]:
        return [Event(*row) for row in self._query(self._history, key=key, after=0, limit=1_000)]

    def page(self, after: int, limit: int) -> list[Event]:
        window = {"after": after, "upto": after + 2**40, "limit": limit}
        return [Event(*row) for row in self._query(self._page, **window, namespace=None, every=1)]


class BatchReads:
    """A log that has a row for each move of many tasks."""

    def __init__(self, store: str, encoding: Encoding, query: Query) -> None:
        assert encoding.shape is not None
        self._shape: Shape = encoding.shape
        columns = ", ".join([_COMMON, *(f"b.{name}" for name in self._shape.columns[store])])
        back, last, before = self._shape.back[store], "t.last_event", "c.event - c.back"
        words = {
            "columns": columns, "ids": _IDS[store], "at_id": _AT.format(event="p.event"),
            "last_back": back.format(place=f"{last} - b.id"), "at_last": _AT.format(event=last),
            "back": back.format(place=f"({before} - b.id)"), "at_back": _AT.format(event=before),
        }  # fmt: skip
        self._history = (_BY_IDS if encoding.ids else _CHAIN).format(**words)
        self._walks, self._row = store == "sqlite" and not encoding.ids, _ROW.format(**words)
        self._batches, self._tasks = _BATCHES.format(**words), _TASKS[store]
        self._query = query

    def history(self, key: int) -> list[Event]:
        return self._walked(key) if self._walks else self._joined(key)

    def _walked(self, key: int) -> list[Event]:
        """From the last event to the first, with a statement for each: without a server these are faster than one."""
        ((*task, event),) = self._query(_TASK, key=key)
        found: list[Event] = []
        while True:
            (row,) = self._query(self._row, event=event)
            entry = self._shape.entry(key, row[2], event - row[0], row[11:])
            found += _events(row, [(event, entry)], {key: task})
            if not entry.back:
                return found[::-1]
            event -= entry.back

    def _joined(self, key: int) -> list[Event]:
        found: list[Event] = []
        for id_, correlation, event, *row in self._query(self._history, key=key):
            entry = self._shape.entry(key, row[2], event - row[0], row[11:])
            found += _events(row, [(event, entry)], {key: (id_, correlation)})
        return found

    def page(self, after: int, limit: int) -> list[Event]:
        parts = self._parts(after, limit)
        keys = {entry.entity for _, entries in parts for _, entry in entries}
        tasks = {key: task for key, *task in self._query(self._tasks, keys=list(keys))}
        return [event for row, entries in parts for event in _events(row, entries, tasks)]

    def _parts(self, after: int, limit: int) -> list[tuple[Any, list[Numbered]]]:
        """Rows, each with those of its entries that are on the page."""
        found: list[tuple[Any, list[Numbered]]] = []
        while limit:
            rows = self._query(self._batches, next=after + 1, rows=BATCHES)
            for row in rows:
                entries = self._entries(row, after)[:limit]
                found.append((row, entries))
                limit -= len(entries)
            end = rows[-1][0] + rows[-1][1] - 1 if rows else after
            if end <= after:
                break
            after = end
        return found

    def _entries(self, row: Any, after: int) -> list[Numbered]:
        first, count, ts = row[:3]
        entries = self._shape.decode(ts, count, row[11:])
        return list(zip(range(first, first + count), entries, strict=True))[max(0, after + 1 - first) :]


def _events(row: Any, entries: list[Numbered], tasks: dict[int, Any]) -> list[Event]:
    """Events of one row of the log. Single tasks are their own jobs."""
    _, _, _, namespace, type_, was, state, actor, cause, trace, payload = row[:11]
    found = []
    for id_, (entity, version, fence, attempts, ts, _) in entries:
        uuid, correlation = tasks[entity]
        found.append(Event(
            id_, uuid, uuid, type_, ts, actor, correlation or uuid, cause, trace, payload,
            version, was, state, fence, attempts, namespace,
        ))  # fmt: skip
    return found
