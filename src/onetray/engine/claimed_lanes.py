"""Write the lanes that a claim has served: open still, blocked by a full counter, or empty.

limited_claim.py has picked their tasks.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from onetray.engine.slot_counters import LockedLane, SlotCounter
from onetray.engine.slots import BLOCKED, EMPTY, OPEN, open_blocked
from onetray.store.base import Tx
from onetray.store.limit_rows import LaneHeadRow


def write_lanes(
    tx: Tx, queue: int, lanes: list[LockedLane], counters: list[SlotCounter], kept: set[int], limit: int
) -> None:
    """Write the lanes of a claim from a queue, after the ready rows of its tasks, `kept`, are deleted."""
    touched = [lane for lane in lanes if lane.picked or lane.is_drained or lane.blocked_on or lane.waited_for]
    if touched:
        _write(tx, queue, touched, kept, limit)
    _open_others(tx, touched, counters)


def _write(tx: Tx, queue: int, lanes: list[LockedLane], kept: set[int], limit: int) -> None:
    heads = _heads(tx, [lane.row.key for lane in lanes])
    empty = _empty(tx, [key for key, head in heads.items() if head.rank is None])
    columns: dict[str, list[Any]] = defaultdict(list)
    for lane in lanes:
        row, head = lane.row, heads[lane.row.key]
        state = EMPTY if row.key in empty else BLOCKED if lane.is_blocked and head.rank is not None else OPEN
        blocked = lane.blocked_on if state == BLOCKED else None
        turn = row.turn + lane.step * sum(picked.key in kept for picked in lane.picked)
        columns["key"].append(row.key)
        columns["lane_state"].append(state)
        columns["rank"].append(row.rank if head.rank is None else head.rank)
        columns["turn"].append(turn if row.fair is not None or head.task is None else head.task)
        columns["blocked_on"].append(blocked and blocked.row.key)
        columns["blocked_at"].append(blocked and tx.now)
        if lane.waited_for and state == OPEN:
            # Others may serve what this claim has no room for.
            tx.work.count(queue, max(1, lane.waited_for.free))
    tx.batch("set_lanes", columns)
    if tx.skips_locked and len(kept) >= limit and OPEN in columns["lane_state"]:
        # Claims that found all lanes locked may serve those that this one has left open.
        tx.work.uncounted.add(queue)


def _heads(tx: Tx, lanes: list[int]) -> dict[int, LaneHeadRow]:
    return {head.key: head for head in tx.query("heads_of_lanes", lanes=lanes)}


def _empty(tx: Tx, lanes: list[int]) -> set[int]:
    """The lanes among these that have no ready tasks, locked so that none comes in unseen."""
    if not lanes:
        return set()
    locked = [key for (key,) in tx.query("lock_empty_lanes", keys=sorted(lanes))]
    # A new statement sees what was committed before the lock.
    return {head.key for head in _heads(tx, locked).values() if head.rank is None} if locked else set()


def _open_others(tx: Tx, lanes: list[LockedLane], counters: list[SlotCounter]) -> None:
    """Open other lanes for slots that the lanes of this claim did not need."""
    unused = [counter for lane in lanes if lane.is_drained for counter in lane.counters]
    # Lanes may wait for freed slots that this claim has not found, or may not serve.
    unused += [counter for counter in counters if counter.freed]
    free = {counter.row.key: counter.unused for counter in unused if not counter.is_full and counter.rule.path}
    waiting = [key for (key,) in tx.query("still_blocked", keys=sorted(free))] if free else []
    if waiting:
        open_blocked(tx, {key: free[key] for key in waiting})
