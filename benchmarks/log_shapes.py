"""How a move of many tasks can be written down as one row of the log, and read again.

Owns the encodings. Where an encoding keeps values, and how SQL finds one of them, is told here; the statements are in
log_postgres.py and log_sqlite.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, Protocol

import orjson


class Entry(NamedTuple):
    """What an event says about its own task. `back` is how far its id is from that of the task's last one; 0: none."""

    entity: int
    version: int
    fence: int
    attempts: int
    ts: int
    back: int


Columns = Sequence[tuple[int, ...]]
"""The values of many entries, for each of their fields."""


class Move(NamedTuple):
    """What all events of a row of the log have in common."""

    type: str
    was: str | None
    state: str
    actor: str


class Shape(Protocol):
    """An encoding of entries in the columns of one row."""

    columns: ClassVar[dict[str, dict[str, str]]]
    """The columns beside those of a move, with their types, on each database."""
    back: ClassVar[dict[str, str]]
    """How SQL finds `back` of the entry at `place` in the row `b`."""

    def encode(self, store: str, columns: Columns) -> Sequence[Any]:
        """The values of the columns."""

    def decode(self, ts: int, count: int, values: Sequence[Any]) -> list[Entry]:
        """All entries of a row."""

    def entry(self, entity: int, ts: int, place: int, values: Sequence[Any]) -> Entry:
        """One of them, which is known to be about this entity."""


_TYPES = {"entity": "bigint", "version": "integer", "fence": "integer", "attempts": "integer", "ts": "bigint",
          "back": "bigint"}  # fmt: skip

_SHARED = {name: type_ for name, type_ in _TYPES.items() if name != "ts"} | {"varied": "text"}


class Lists:
    """A list for each column: arrays on PostgreSQL, JSON on SQLite."""

    columns: ClassVar = {
        "postgres": {f"{name}_list": f"{type_}[]" for name, type_ in _TYPES.items()},
        "sqlite": {f"{name}_list": "text" for name in _TYPES},
    }
    back: ClassVar = {"postgres": "b.back_list[{place} + 1]", "sqlite": "b.back_list ->> ({place})"}

    def encode(self, store: str, columns: Columns) -> Sequence[Any]:
        return [list(column) if store == "postgres" else orjson.dumps(column).decode() for column in columns]

    def decode(self, ts: int, count: int, values: Sequence[Any]) -> list[Entry]:
        return list(map(Entry, *map(_list, values)))

    def entry(self, entity: int, ts: int, place: int, values: Sequence[Any]) -> Entry:
        return Entry(*(_list(column)[place] for column in values))


class Tuples:
    """One JSON value that has a list for each entry."""

    columns: ClassVar = {"postgres": {"entries": "text"}, "sqlite": {"entries": "text"}}
    back: ClassVar = {
        "postgres": "CAST(CAST(b.entries AS json) -> CAST({place} AS integer) ->> 5 AS bigint)",
        "sqlite": "b.entries ->> ('$[' || ({place}) || '][5]')",
    }

    def encode(self, store: str, columns: Columns) -> Sequence[Any]:
        return [orjson.dumps(list(zip(*columns, strict=True))).decode()]

    def decode(self, ts: int, count: int, values: Sequence[Any]) -> list[Entry]:
        return list(map(Entry._make, orjson.loads(values[0])))

    def entry(self, entity: int, ts: int, place: int, values: Sequence[Any]) -> Entry:
        return Entry._make(orjson.loads(values[0])[place])


class Shared:
    """What all entries share is in a column, once; keys that follow each other are their first; lists have the rest."""

    names = tuple(_SHARED)[:-1]
    columns: ClassVar = dict.fromkeys(("postgres", "sqlite"), _SHARED)
    back: ClassVar = {
        # As text: to parse the value as JSON takes PostgreSQL longer than all the rest.
        "postgres": "coalesce(b.back, CAST(split_part(split_part(split_part(b.varied, '\"back\":[', 2), ']', 1), ',', "
        "CAST({place} + 1 AS integer)) AS bigint))",
        "sqlite": "coalesce(b.back, b.varied ->> ('$.back[' || ({place}) || ']'))",
    }

    def encode(self, store: str, columns: Columns) -> Sequence[Any]:
        keys, version, fence, attempts, _, back = columns
        scalars: list[Any] = [keys[0]]
        varied: dict[str, Any] = {} if keys == (*range(keys[0], keys[0] + len(keys)),) else {"entity": keys}
        for name, values in zip(self.names[1:], (version, fence, attempts, back), strict=True):
            same = values.count(values[0]) == len(values)
            scalars.append(values[0] if same else None)
            if not same:
                varied[name] = values
        return [*scalars, orjson.dumps(varied).decode() if varied else None]

    def decode(self, ts: int, count: int, values: Sequence[Any]) -> list[Entry]:
        varied = orjson.loads(values[-1]) if values[-1] else {}
        entity, *scalars = (
            varied[name] if name in varied else repeat(value, count)
            for name, value in zip(self.names, values, strict=False)
        )
        if "entity" not in varied:
            entity = range(values[0], values[0] + count)
        version, fence, attempts, back = scalars
        return list(map(Entry, entity, version, fence, attempts, repeat(ts, count), back))

    def entry(self, entity: int, ts: int, place: int, values: Sequence[Any]) -> Entry:
        _, *scalars, varied = values
        version, fence, attempts, back = (
            _item(varied, name, place) if value is None else value
            for name, value in zip(self.names[1:], scalars, strict=True)
        )
        return Entry(entity, version, fence, attempts, ts, back)


def _item(varied: str, name: str, place: int) -> int:
    """One number of a list. To parse all lists for it would take longer than to read the row."""
    start = varied.index(head := f'"{name}":[') + len(head)
    return int(varied[start : varied.index("]", start)].split(",", place + 1)[place])


def _list(value: Any) -> list[int]:
    """A column of SQLite is the text of a list."""
    found: list[int] = orjson.loads(value) if isinstance(value, str) else value
    return found


class Encoding(NamedTuple):
    """A way to write the log, and how a task finds its events: by an index over events, or by its own row."""

    shape: Shape | None
    """None is a row for each event."""
    ids: bool = False
    """The task's row has the ids of all its events. Otherwise it has the last one, and each leads to the one before."""


ROWS = "rows"
ENCODINGS = {
    ROWS: Encoding(None),
    "lists": Encoding(Lists()),
    "tuples": Encoding(Tuples()),
    "shared": Encoding(Shared()),
    "shared_ids": Encoding(Shared(), ids=True),
}
