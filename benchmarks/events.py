"""The one place where a benchmark writes events that no engine has made.

Owns the rows of the log beside tasks that were written by hand: those of the limit, and of a crowd. Whoever changes the
tables of the log changes them here. (`bench log` has tables of its own.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

Write = Callable[[str, dict[str, Any]], object]
"""Runs a statement of one database with parameters by name."""
Moved = tuple[int, int, int, int, int]
"""Key, version, fence, attempts and time of a single task that has moved."""


class Happened(NamedTuple):
    """What the events of one move have in common."""

    ns: int
    type: str
    was: str | None
    state: str
    actor: str
    correlation_id: str | None = None
    cause: str | None = None
    trace: str | None = None
    payload: str | None = None


_COMMON = ("ns", *Happened._fields[1:])
_INSERT = f"INSERT INTO onetray.event (entity, job, version, fence, attempts, ts, {', '.join(_COMMON)})"
_POSTGRES = f"""{_INSERT}
SELECT b.key, b.key, b.version, b.fence, b.attempts, b.ts, CAST(%(ns)s AS integer),
    {", ".join(f"CAST(%({name})s AS text)" for name in _COMMON[1:])}
FROM unnest(%(keys)s::bigint[], %(versions)s::integer[], %(fences)s::integer[], %(attempts)s::integer[],
    %(times)s::bigint[]) AS b(key, version, fence, attempts, ts)"""
_SQLITE = f"""{_INSERT.replace("onetray.", "")}
SELECT value ->> 0, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
    {", ".join(f":{c}" for c in _COMMON)}
FROM json_each(:tasks)"""


def write_events(write: Write, store: str, happened: Happened, tasks: Sequence[Moved]) -> None:
    """One event for each of these tasks, in this order, inside the transaction that has moved them."""
    if store == "postgres":
        columns = zip(("keys", "versions", "fences", "attempts", "times"), zip(*tasks, strict=True), strict=True)
        write(_POSTGRES, {**happened._asdict(), **{name: list(column) for name, column in columns}})
    else:
        write(_SQLITE, {**happened._asdict(), "tasks": orjson.dumps([tuple(task) for task in tasks]).decode()})
