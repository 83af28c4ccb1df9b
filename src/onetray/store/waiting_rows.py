"""The table `waiting`: a row for each task and stage that waits for a person.

Owns which moves change it. An index over the state of all tasks would cost every move: this table costs only those that
wait.
"""

from __future__ import annotations

from functools import cache

from onetray.domain.lifecycle import PAUSED, STAGE, TASK, WAITING
from onetray.domain.machine import Transition
from onetray.store.base import Columns, Tx

STATES = {TASK.entity: PAUSED, STAGE.entity: (WAITING,)}


@cache
def _states(hops: tuple[Transition, ...]) -> tuple[tuple[str, ...], bool]:
    """The states from which this move may take something that waits, and whether it leads to one."""
    states = STATES.get(hops[0].entity, ())
    return tuple(s for s in hops[0].sources if s in states), hops[-1].target in states


def update_waiting(tx: Tx, hops: tuple[Transition, ...], columns: Columns) -> None:
    """Write what a move changes in the table. Nothing for most moves."""
    left, enters = _states(hops)
    if left:
        was, keys = columns["was"], columns["key"]
        states = was if isinstance(was, list) else [was] * len(keys)
        if gone := [key for key, state in zip(keys, states, strict=True) if state in left]:
            tx.query_later("delete_waiting", keys=sorted(gone))
    if enters:
        at, ns = columns["at"], columns["ns"]
        tx.batch("insert_waiting", {"key": columns["key"], "ns": ns, "at": at, "state": hops[-1].target})
