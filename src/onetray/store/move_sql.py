"""The statement of each transition: its UPDATE, guarded by the lifecycle, and the INSERT of its events.

Owns the guard. The columns that change besides the state are in sql/move.sql.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from onetray.domain.lifecycle import TASK
from onetray.domain.machine import Transition
from onetray.store.sql_template import (
    BATCH_COLUMN,
    SQLITE,
    Statement,
    Word,
    fill,
    quoted,
    render,
    sections_of,
    with_parameters,
)

_HELD = " AND task.owner = b.worker AND task.lease = b.lease AND task.ns = b.ns AND task.stage IS NULL"
"""The additional guard for tasks that were not locked: the worker holds the task, and it belongs to no flow."""


@dataclass(frozen=True, slots=True)
class Move:
    """A transition's statement. SQLite needs a second one to write the events."""

    name: str
    update: Statement
    events: Statement | None = None


def title(t: Transition) -> str:
    """The name of a transition's statement. Those of tasks have no prefix."""
    return t.name if t.entity == TASK.entity else f"{t.entity}.{t.name}"


@cache
def move_of(hops: tuple[Transition, ...], dialect: str, once: frozenset[str] = frozenset(), held: bool = False) -> Move:
    name = ", ".join(title(h) for h in hops)
    update, row = (with_parameters(name, text, dialect, once) for text in (_update(name, hops, held), _event_row(hops)))
    columns = tuple(dict.fromkeys(BATCH_COLUMN.findall(f"{update} {row}")))
    moved = "WITH moved({event_columns}, began) AS"
    if dialect == SQLITE:
        table = hops[0].entity
        rows = f"SELECT {row} {{from_batch}} CROSS JOIN onetray.{table} ON {table}.key = b.key"
        events = f"{moved} ({rows}) {_write_events(hops, '')}"
        return Move(name, render(name, update, dialect, columns), render(name, events, dialect, columns))
    order = "ORDER BY entity, hop"
    text = f"{moved} ({update} RETURNING {row}), written AS ({_write_events(hops, order)}) {all_of('moved')}"
    return Move(name, render(name, text, dialect, columns))


def all_of(cte: str) -> str:
    """Fail, and so roll back, on PostgreSQL unless the statement changed the expected number of rows. So COMMIT can be
    sent in the same round trip."""
    return f"SELECT count(*) / CASE count(*) WHEN :expected::bigint THEN 1 ELSE 0 END FROM {cte}"


def _update(name: str, hops: tuple[Transition, ...], held: bool) -> str:
    """Add the guard and the new state from the lifecycle's table to the UPDATE."""
    first, last = hops[0], hops[-1]
    t = first.entity
    guard = f"{t}.key = b.key AND {t}.version = b.version AND {t}.state IN ({quoted(first.sources)})"
    guard += f" AND {t}.state = b.was" if len(first.sources) > 1 else ""
    guard += f" AND {t}.fence = b.fence" if first.fenced else ""
    guard += _HELD if held else ""
    freed = "owner = NULL, lease = NULL"
    words: dict[str, Word] = {
        "moved": f"state = '{last.target}', version = {t}.version + {len(hops)}, updated_at = {{last}}",
        "ended": f"finished_at = {{last}}, {freed}" if t == TASK.entity else "finished_at = {last}",
        "reopened": f"fence = task.fence + 1, run_at = b.run_at, {freed}",
        "freed": freed,
        "last": f"{{greatest}}(b.at, {t}.updated_at)",
    }
    return f"{fill(sections_of('move')[name].text, words)} {{from_batch}} WHERE {guard}"


def _event_row(hops: tuple[Transition, ...]) -> str:
    """The columns of the last hop's event, from the updated row, and `started_at`."""
    last = hops[-1]
    t = last.entity
    was = "b.was" if len(last.sources) > 1 else quoted(last.sources)
    tries = "task.fence, task.attempts" if t == TASK.entity else "0, 0"
    return (
        f"{t}.key, {t}.job, {t}.updated_at, {t}.ns, {t}.version, {tries}, "
        f"'{last.event}', {was}, '{last.target}', b.actor, {t}.correlation_id, b.cause, "
        f"coalesce(b.trace, {t}.trace), b.detail, {t}.started_at"
    )


def _write_events(hops: tuple[Transition, ...], order: str) -> str:
    """Write one event for each hop of each updated row. SQLite keeps the order of a CROSS JOIN without ORDER BY."""
    select = "SELECT {event_columns} FROM moved"
    if len(hops) == 2:
        a, b = hops
        select = (
            "SELECT entity, job, CASE hop WHEN 1 THEN began ELSE ts END, ns, version - 2 + hop, fence, attempts, "
            "hops.type, hops.was, hops.state, actor, correlation_id, cause, trace, "
            "CASE hop WHEN 2 THEN payload END FROM moved CROSS JOIN ("
            f"SELECT 1 AS hop, '{a.event}' AS type, '{a.sources[0]}' AS was, '{a.target}' AS state "
            f"UNION ALL SELECT 2, '{b.event}', '{b.sources[0]}', '{b.target}') AS hops {order}"
        )
    return f"INSERT INTO onetray.event ({{event_columns}}) {select}"
