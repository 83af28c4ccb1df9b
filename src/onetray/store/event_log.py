"""The log of events, in batches: one row for what one move moves.

Owns how a row is encoded and decoded, and how entries are removed from it. What the columns mean is in the migration
that creates the table (0013.sql); the view `event` decodes the same rows in SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import orjson

from onetray.domain.lifecycle import FLOW
from onetray.domain.machine import Transition
from onetray.store.base import Columns
from onetray.store.event_rows import EventBatch

BLOCK = 1_024
"""Most entries of a row. The sequence of PostgreSQL steps by it."""
PAGE = 64
"""How many transitions the row of an entity lists, at most. Earlier ones are in the table event_page."""
SHARED = ("ns", "was", "actor", "version", "fence", "attempts", "cause", "trace", "payload")
"""The columns that have a value for all entries, or a list in `varied`."""
LONG = ("payload", "cause")
"""The columns whose values may be long."""
ROW_CHARS = 64_000
"""How much of them one row of the log takes: who reads one event reads its row."""
NOTE = {"was": None, "version": None, "state": None}
"""The columns of a note, which records no transition."""


NO_ENTRY: dict[str, Any] = {"size": 1, "job": None, "cause": None, "trace": None, "payload": None, "varied": None}
"""What a row of the log contains besides one entry about a single task, if nothing else is to be said about it."""


class Entry(NamedTuple):
    """An event as the log has it."""

    id: int
    entity: int
    job: int
    ts: int
    ns: int
    type: str
    was: str | None
    state: str | None
    actor: str
    version: int | None
    fence: int
    attempts: int
    cause: str | None
    trace: str | None
    payload: str | None


class NewRow(NamedTuple):
    """A row of the log that is not written yet."""

    place: int
    """Where its first event stands among those that were given their ids together."""
    columns: dict[str, Any]
    flows: list[int]
    """The flows that it is about."""


def rows_of(events: Columns, place: int = 0) -> Iterator[NewRow]:
    """The rows for these events, which are of one type: one row, or several if much is to be said about each."""
    for start, part in _readable_parts(events):
        yield NewRow(place + start, encode_batch(part), _flows(part))


def _readable_parts(events: Columns) -> Iterator[tuple[int, Columns]]:
    """The events in parts that are not too long, each with the place of its first event."""
    long = [values for name in LONG if isinstance(values := events[name], list)]
    lengths = [sum(map(len, filter(None, each))) for each in zip(*long, strict=True)]
    if sum(lengths) <= ROW_CHARS:
        yield 0, events
        return
    start = taken = 0
    for i, length in enumerate(lengths):
        if i > start and taken + length > ROW_CHARS:
            yield start, _part(events, start, i)
            start, taken = i, 0
        taken += length
    yield start, _part(events, start, len(lengths))


def _part(columns: Columns, start: int, end: int) -> Columns:
    return {name: values[start:end] if isinstance(values, list) else values for name, values in columns.items()}


def _flows(events: Columns) -> list[int]:
    """The flows that events are about. A single task is in none."""
    entities, jobs = events["entity"], events["job"]
    if events["type"].startswith(f"{FLOW.entity}."):
        return list(entities)
    if jobs is None:
        return []
    if not isinstance(jobs, list):
        return [jobs]
    return sorted({job for job, entity in zip(jobs, entities, strict=True) if job != entity})


def encode_batch(events: Columns) -> dict[str, Any]:
    """The columns of a row, without its id. `entity` is a list; other columns may be one value for all entries."""
    entities: list[int] = events["entity"]
    size, first = len(entities), entities[0]
    row: dict[str, Any] = {"size": size, "type": events["type"], "state": events["state"], "entity": first}
    varied: dict[str, Any] = {}
    if size > 1 and entities != list(range(first, first + size)):
        row["entity"], varied["entity"] = None, entities
    row["job"] = _job(events["job"], entities, varied)
    row["ts"] = _latest(events["ts"], varied)
    for name in SHARED:
        row[name] = _shared(name, events[name], varied)
    row["varied"] = orjson.dumps(varied).decode() if varied else None
    return row


def _job(jobs: Any, entities: list[int], varied: dict[str, Any]) -> Any:
    if jobs is None or jobs == entities:
        return None
    return _shared("job", jobs, varied)


def _latest(times: Any, varied: dict[str, Any]) -> int:
    if not isinstance(times, list):
        return int(times)
    latest = max(times)
    earlier = [latest - ts for ts in times]
    if any(earlier):
        varied["ts"] = earlier
    return int(latest)


def _shared(name: str, values: Any, varied: dict[str, Any]) -> Any:
    if not isinstance(values, list):
        return values
    if values.count(values[0]) == len(values):
        return values[0]
    varied[name] = values
    return None


def decode_batch(row: EventBatch) -> Iterator[Entry]:
    """The events of a row, in order, without those that were removed."""
    n = row.size
    varied = _varied(row)
    entities = _entities(row, varied)
    times = [row.ts - earlier for earlier in varied["ts"]] if "ts" in varied else repeat(row.ts, n)

    def values(name: str) -> Iterable[Any]:
        return varied.get(name) or repeat(getattr(row, name), n)

    jobs = entities if row.job is None and "job" not in varied else values("job")
    columns = zip(
        range(row.id, row.id + n), entities, jobs, times, values("ns"), repeat(row.type, n), values("was"),
        repeat(row.state, n), values("actor"), values("version"), values("fence"), values("attempts"),
        values("cause"), values("trace"), values("payload"), strict=True,
    )  # fmt: skip
    if not varied:
        return map(Entry._make, columns)
    return (
        Entry._make(entry if entry[2] is not None else (*entry[:2], entry[1], *entry[3:]))
        for entry in columns
        if entry[1] is not None
    )


def entry_at(row: EventBatch, id_: int) -> Entry:
    """One event of a row."""
    place, varied = id_ - row.id, _varied(row)

    def value(name: str) -> Any:
        return varied[name][place] if name in varied else getattr(row, name)

    entity = varied["entity"][place] if "entity" in varied else (row.entity or 0) + place
    job = value("job")
    return Entry(
        id_, entity, entity if job is None else job, row.ts - (varied["ts"][place] if "ts" in varied else 0),
        value("ns"), row.type, value("was"), row.state, value("actor"), value("version"), value("fence"),
        value("attempts"), value("cause"), value("trace"), value("payload"),
    )  # fmt: skip


def _varied(row: EventBatch) -> dict[str, list[Any]]:
    return orjson.loads(row.varied) if row.varied is not None else {}


def _entities(row: EventBatch, varied: dict[str, list[Any]]) -> Sequence[int | None]:
    first = row.entity or 0
    return varied.get("entity") or range(first, first + row.size)


def without(row: EventBatch, entities: Collection[int]) -> str | None:
    """What a row's `varied` becomes without the entries of these entities. None if no entry is left."""
    varied = _varied(row)
    kept = [None if entity in entities else entity for entity in _entities(row, varied)]
    if not any(kept):
        return None
    shown = {
        name: values if name == "ts" else [None if e is None else value for e, value in zip(kept, values, strict=True)]
        for name, values in varied.items()
    }
    return orjson.dumps({**shown, "entity": kept}).decode()


def slices_of(columns: Columns, size: int, most: int = BLOCK) -> Iterator[tuple[int, Columns]]:
    """A batch in parts of at most so many rows, each with its size."""
    if size <= most:
        yield size, columns
        return
    for start in range(0, size, most):
        end = min(start + most, size)
        yield end - start, _part(columns, start, end)


def rows_of_move(hops: tuple[Transition, ...], columns: Columns) -> Iterator[NewRow]:
    """The rows of the log for each hop of a move, one hop after the other.

    `attempts` are those after the move, and so is the fence, except that it is that of the guard where a move reopens.
    """
    last, size = hops[-1], len(columns["key"])
    for nth, hop in enumerate(hops):
        fence = columns["fence"]
        events = {
            "entity": columns["key"], "job": columns["job"], "ns": columns["ns"], "type": hop.event,
            "state": hop.target, "was": columns["was"] if len(hop.sources) > 1 else hop.sources[0],
            "version": _plus(columns["version"], nth + 1), "fence": _plus(fence, 1) if hop.reopens else fence,
            "attempts": columns["attempts"], "actor": columns["actor"], "cause": columns["cause"],
            "trace": columns["trace"], "payload": columns["detail"] if hop is last else None,
            "ts": columns["at"] if hop is last else columns.get("began", columns["at"]),
        }  # fmt: skip
        yield from rows_of(events, nth * size)


def long_lists(hops: tuple[Transition, ...], columns: Columns) -> list[int]:
    """The entities whose lists of events have become long with this move: a part of each is put away."""
    versions, keys = columns["version"], columns["key"]
    if not isinstance(versions, list):
        versions = [versions] * len(keys) if versions + len(hops) >= PAGE else []
    elif max(versions) + len(hops) < PAGE:
        return []
    return [
        key for key, version in zip(keys, versions, strict=False) if version // PAGE < (version + len(hops)) // PAGE
    ]


def _plus(values: Any, more: int) -> Any:
    return [value + more for value in values] if isinstance(values, list) else values + more
