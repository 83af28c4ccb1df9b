"""The one place where a benchmark writes events that no engine has made.

Owns the rows of the log beside tasks that were written by hand: those of the limit, and of a crowd. Whoever changes the
tables of the log changes them here. (`bench log` has tables of its own.) Each task lists its events in its own row,
which is up to the statement that moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from onetray.store.event_log import BLOCK, encode_batch, slices_of

Write = Callable[[str, dict[str, Any]], object]
"""Runs a statement of one database with parameters by name."""
Moved = Sequence[int]
"""Key, version, fence, attempts and time of a single task that has moved."""


class Happened(NamedTuple):
    """What the events of one move have in common."""

    ns: int
    type: str
    was: str | None
    state: str
    actor: str
    cause: str | None = None
    trace: str | None = None
    payload: str | None = None


_COLUMNS = ("entity", "version", "fence", "attempts", "ts")
_ENCODED = ("size", "ts", "entity", "job", "version", "fence", "attempts", *Happened._fields, "varied")
_INSERT = f"INSERT INTO onetray.event_batch (id, {', '.join(_ENCODED)}) VALUES"
_POSTGRES = f"""{_INSERT} (coalesce(%(event)s::bigint, currval('onetray.event_id')) + %(place)s::bigint,
    {", ".join(f"%({name})s" for name in _ENCODED)})"""
_SQLITE = f"{_INSERT.replace('onetray.', '')} (:event + :place, {', '.join(f':{name}' for name in _ENCODED)})"


def write_events(
    write: Write, store: str, happened: Happened, tasks: Sequence[Moved], event: int | None, place: int = 0
) -> None:
    """One event for each of these tasks, in this order, inside the transaction that has moved them.

    The first of their ids is `event + place`. On PostgreSQL no `event` is the block of ids that was taken last.
    """
    columns = dict(zip(_COLUMNS, map(list, zip(*tasks, strict=True)), strict=True))
    for size, part in slices_of({**columns, **happened._asdict(), "job": None}, len(tasks)):
        row = encode_batch(part)
        if store == "postgres":
            # As text: a statement is prepared anew for each combination of numbers and nulls.
            row = {name: None if value is None else str(value) for name, value in row.items()}
        write(_POSTGRES if store == "postgres" else _SQLITE, {**row, "event": event, "place": place})
        place += size


def in_blocks(items: list[Any], events_each: int = 1) -> list[list[Any]]:
    """Parts whose events have ids of one block: as many as a number of PostgreSQL's sequence stands for."""
    most = BLOCK // events_each
    return [items[i : i + most] for i in range(0, len(items), most)]
