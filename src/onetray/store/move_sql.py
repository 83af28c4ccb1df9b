"""The statement of each transition: its UPDATE, guarded by the lifecycle.

Owns the guard. Its events are a row of the log: event_log.py.
The columns that change besides the state are in sql/move.sql.
"""

from __future__ import annotations

from functools import cache

from onetray.domain.lifecycle import TASK
from onetray.domain.machine import Transition
from onetray.store.sql_template import (
    BATCH_COLUMN,
    NEW_EVENTS,
    SQLITE,
    WORDS,
    Statement,
    Word,
    fill,
    quoted,
    render,
    sections_of,
    with_parameters,
)

_HELD = (
    " AND task.owner = b.worker AND task.lease = b.lease AND task.ns = b.ns AND task.attempts = b.attempts"
    " AND task.updated_at <= {first} AND task.stage IS NULL AND task.slots {slots}"
)
"""The additional guard for tasks that were not locked: the worker holds it, it belongs to no flow, it has no slots of
limits but those that were read, and what its event says of it is true."""


def title(t: Transition) -> str:
    """The name of a transition's statement. Those of tasks have no prefix."""
    return t.name if t.entity == TASK.entity else f"{t.entity}.{t.name}"


@cache
def move_of(
    hops: tuple[Transition, ...],
    dialect: str,
    once: frozenset[str] = frozenset(),
    held: bool = False,
    with_slots: bool = False,
) -> Statement:
    name = ", ".join(title(h) for h in hops)
    update = with_parameters(name, _update(name, hops, held, with_slots), dialect, once)
    update = fill(update, {"key_of_b": WORDS[dialect]["key_of_b"]})
    columns = tuple(dict.fromkeys(BATCH_COLUMN.findall(update)))
    if dialect == SQLITE:
        return render(name, update, dialect, columns)
    return render(name, f"WITH {NEW_EVENTS}, moved AS ({update} RETURNING 1) {all_of('moved')}", dialect, columns)


def update_of(hops: tuple[Transition, ...]) -> str:
    """The UPDATE of a move without slots, as a text with words: its batch is {from_batch}."""
    return _update(", ".join(title(h) for h in hops), hops, held=False, with_slots=False)


def all_of(cte: str) -> str:
    """Fail, and so roll back, on PostgreSQL unless the statement changed the expected number of rows. So COMMIT can be
    sent in the same round trip."""
    return f"SELECT count(*) / CASE count(*) WHEN :size::bigint THEN 1 ELSE 0 END FROM {cte}"


def _update(name: str, hops: tuple[Transition, ...], held: bool, with_slots: bool) -> str:
    """Add the guard and the new state from the lifecycle's table to the UPDATE."""
    first, last = hops[0], hops[-1]
    t = first.entity
    freed = "owner = NULL, lease = NULL, slots = NULL"
    events = "',' || {event_id}" + (" || ',' || {event_id:2}" if len(hops) == 2 else "")
    words: dict[str, Word] = {
        "moved": f"state = '{last.target}', version = {t}.version + {len(hops)}, updated_at = b.at, "
        f"events = {t}.events || {events}" + (", slots = b.slots" if with_slots and not held else ""),
        "ended": f"finished_at = b.at, {freed}" if t == TASK.entity else "finished_at = b.at",
        "reopened": f"fence = task.fence + 1, run_at = b.run_at, {freed}",
        "freed": freed,
        "slots": "= b.slots" if with_slots else "IS NULL",
        "first": "b.began" if first is TASK.start and len(hops) == 2 else "b.at",
    }
    guard = f"{t}.key = {{key_of_b}} AND {t}.version = b.version AND {t}.state IN ({quoted(first.sources)})"
    guard += f" AND {t}.state = b.was" if len(first.sources) > 1 else ""
    guard += f" AND {t}.fence = b.fence" if first.fenced else ""
    guard += fill(_HELD, words) if held else ""
    return f"{fill(sections_of('move')[name].text, words)} {{from_batch}} WHERE {guard}"
