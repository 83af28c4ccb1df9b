"""Slots and lanes: what a batch gives back to limits, and the tasks that it puts into lanes.

A held task that counts against limits names their counters (`task.slots`); every way out of a worker's hands gives the
slots back in the same transaction. limited_claim.py takes them. Owns the order of locks: tasks, then lanes, then
counters, each sorted; who holds a counter waits for no lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import orjson

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.store.base import Columns, Tx, in_rows
from onetray.store.limit_rows import BlockedLaneRow, BucketRow, LaneEntryRow
from onetray.store.rows import TaskRow

EMPTY, OPEN, BLOCKED = 0, 1, 2
"""The states of a lane: it has no ready tasks; claims may serve it; a counter has no slot for it."""
OPEN_LIMIT, OPEN_LANE, OPEN_RULE, COUNT_LIMIT = OF_LIMITS = "open_limit", "open_lane", "open_rule", "count_limit"
"""What the janitor does for a due row, whose `task` is the key of a counter, a lane or a limit."""
STEP = 1_000
"""How many lanes one step opens."""


class LaneGone(Exception):
    """A lane was deleted because nothing used it. Its tasks need a new one."""

    def __init__(self, lanes: Iterable[int]) -> None:
        super().__init__(f"the lanes {sorted(lanes)} are gone: run `onetray verify`")
        self.lanes = frozenset(lanes)


def slots_of(text: str | None) -> list[int]:
    """The counters in which a held task is counted."""
    return [int(key) for key in text.split(",") if key] if text else []


class LimitChanges:
    """What the commands of one batch change in lanes and counters. It is written once, after all tasks."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._entered: dict[int, list[tuple[int, int]]] = {}
        self.freed: Counter[int] = Counter()
        """How many slots of each counter the batch gives back. A claim of the same batch may take them over: see
        limited_claim.py."""
        self.has_lanes = self.has_counters = False
        """Whether this transaction has locked lanes or counters already: then a claim must not wait for more."""

    @property
    def has_locks(self) -> bool:
        return self.has_lanes or self.has_counters

    def enter(self, ready: Columns) -> None:
        """Note the new ready rows among these that stand in lanes."""
        lines = ready["queue"]
        if not isinstance(lines, list):
            if lines > 0 or not ready["key"]:
                return
        elif not lines or min(lines) > 0:
            return
        for line, rank, key in in_rows(ready, ("queue", "rank", "key")):
            if line < 0:
                self._entered.setdefault(-line, []).append((rank, key))

    def give_back(self, row: TaskRow) -> None:
        """Note that a worker no longer holds this task."""
        if row.slots:
            self._tx.limited.add(row.queue)
            self.freed.update(slots_of(row.slots))

    def give_back_all(self, slots: Iterable[str]) -> None:
        """Note the slots of tasks that workers no longer hold."""
        for text, number in Counter(slots).items():
            for key in slots_of(text):
                self.freed[key] += number

    def write_lanes(self) -> None:
        """Open the lanes that tasks have entered. Before any counter is locked."""
        if self._entered:
            entered, self._entered, self.has_lanes = self._entered, {}, True
            enter_lanes(self._tx, entered)

    def write(self) -> None:
        self.write_lanes()
        if self.freed:
            freed, self.freed, self.has_counters = self.freed, Counter(), True
            release_slots(self._tx, freed, self._tx.query("lock_buckets", keys=sorted(freed)))


def enter_lanes(tx: Tx, entered: Mapping[int, list[tuple[int, int]]]) -> None:
    """Open the lanes that have got ready rows: by lane, the ranks and keys of the tasks."""
    lanes: dict[int, LaneEntryRow] = {lane.key: lane for lane in tx.query("share_lanes", keys=sorted(entered))}
    failpoints.hit("lanes_shared")
    if len(lanes) < len(entered):
        raise LaneGone(entered.keys() - lanes.keys())
    to_open = [lane.key for lane in lanes.values() if _changes(lane, entered)]
    if to_open and tx.is_callers:
        # Others must not wait for the lock of a lane until the caller commits.
        tx.batch("insert_due", {"at": tx.now, "key": to_open, "what": OPEN_LANE, "fence": 0})
        return
    if to_open:
        lanes |= {lane.key: lane for lane in tx.query("lock_lanes_to_open", keys=to_open)}
        changed = [lane for key in to_open if _changes(lane := lanes[key], entered)]
        _open(tx, [_entered(lane, *min(entered[lane.key])) for lane in changed])
        lanes |= {lane.key: lane._replace(state=max(lane.state, OPEN)) for lane in changed}
    for lane in lanes.values():
        if lane.state == OPEN:
            tx.work.count(lane.queue, len(entered[lane.key]))


def _changes(lane: LaneEntryRow, entered: Mapping[int, list[tuple[int, int]]]) -> bool:
    return lane.state == EMPTY or lane.retired_at is not None or min(entered[lane.key])[0] < lane.rank


def _entered(lane: LaneEntryRow, rank: int, key: int) -> LaneEntryRow:
    """The lane after tasks with this first rank and key have entered it."""
    if lane.state == EMPTY:
        return lane._replace(state=OPEN, rank=rank, turn=lane.turn if lane.fair is not None else key)
    return lane._replace(rank=min(rank, lane.rank))


def _open(tx: Tx, lanes: list[LaneEntryRow]) -> None:
    """Write lanes that tasks have entered. A fair one that was idle does not catch up on what others got meanwhile."""
    if lanes:
        turns = first_turns(tx, lanes)
        tx.batch("enter_lanes", {
            "key": [lane.key for lane in lanes], "lane_state": [lane.state for lane in lanes],
            "rank": [lane.rank for lane in lanes], "turn": [turns[lane.key] for lane in lanes],
        })  # fmt: skip


def first_turns(tx: Tx, lanes: list[LaneEntryRow] | list[BlockedLaneRow]) -> dict[int, int]:
    """The turn of each lane when it opens."""
    fair = [lane for lane in lanes if lane.fair is not None]
    first: dict[int, int | None] = {}
    if fair:
        first = dict(tx.batch("first_turns", {
            "key": [lane.key for lane in fair], "queue": [lane.queue for lane in fair],
            "kind": [lane.kind for lane in fair], "rank": [lane.rank for lane in fair],
        }))  # fmt: skip
    return {lane.key: max(lane.turn, first.get(lane.key) or 0) for lane in lanes}


def open_lanes(tx: Tx, keys: list[int]) -> None:
    """Open lanes that a caller's transaction has put tasks into, if they have any still."""
    locked = [lane for lane in tx.query("lock_lanes_to_open", keys=sorted(keys)) if lane.state != BLOCKED]
    heads = {head.key: head for head in tx.query("heads_of_lanes", lanes=[lane.key for lane in locked])}
    full = [
        (lane, head.rank, head.task)
        for lane in locked
        if (head := heads[lane.key]).rank is not None and head.task is not None
    ]
    _open(tx, [_entered(lane, rank, task) for lane, rank, task in full])
    tx.work.uncounted.update(lane.queue for lane, _, _ in full)


def release_slots(tx: Tx, freed: Mapping[int, int], buckets: list[BucketRow]) -> None:
    """Give slots back to these locked counters, and open what waits for them. A removed limit has no counter."""
    if not buckets:
        return
    failpoints.hit("slots_locked")
    for bucket in buckets:
        tx.work.uncounted.update(orjson.loads(bucket.waiters))
    write_buckets(tx, [bucket._replace(running=bucket.running - freed[bucket.key], waiters="[]") for bucket in buckets])
    open_blocked(tx, {bucket.key: freed[bucket.key] for bucket in buckets})


def write_buckets(tx: Tx, buckets: list[BucketRow]) -> None:
    if buckets:
        names = ("key", "running", "starts", "next_at", "due_at", "waiters")
        tx.batch("set_buckets", {name: [getattr(bucket, name) for bucket in buckets] for name in names})


def open_blocked(tx: Tx, free: Mapping[int, int]) -> list[BlockedLaneRow]:
    """Open lanes that wait for these locked counters: at most so many of each.

    A lane that another transaction has locked is left to the janitor: who holds a counter waits for no lane. So are
    lanes beyond that number, a second later: if nobody serves those that are open, others must not wait for ever.
    """
    found = tx.lock_blocked_lanes({key: min(number, STEP) for key, number in free.items()})
    opened = Counter(lane.blocked_on for lane in found)
    open_locked(tx, found, free)
    unsure = {key for key, number in free.items() if opened[key] < number} if tx.skips_locked else set()
    # The claims of a lane that is open now need not come: its queue may be paused, or have no worker.
    served = {key for key, number in free.items() if opened[key] == number}
    left = {key for (key,) in tx.query("still_blocked", keys=sorted(unsure | served))} if unsure or served else set()
    later = (tx.now // SECOND + 2) * SECOND
    if left:
        keys = sorted(left)
        at = [tx.now if key in unsure else later for key in keys]
        tx.batch("insert_due", {"at": at, "key": keys, "what": OPEN_LIMIT, "fence": 0})
    return found


def open_locked(tx: Tx, lanes: list[BlockedLaneRow], free: Mapping[int, int]) -> None:
    """Open these locked lanes. `free`: how many slots each counter has for them."""
    if lanes:
        turns = first_turns(tx, lanes)
        tx.batch("set_lanes", {
            "key": [lane.key for lane in lanes], "lane_state": OPEN, "rank": [lane.rank for lane in lanes],
            "turn": [turns[lane.key] for lane in lanes], "blocked_on": None, "blocked_at": None,
        })  # fmt: skip
        for lane in lanes:
            tx.work.count(lane.queue, free[lane.blocked_on])


def open_limits(tx: Tx, keys: list[int]) -> None:
    """Open what waits for counters whose time has come: see OPEN_LIMIT."""
    buckets = tx.query("lock_buckets", keys=sorted(keys))
    for bucket in buckets:
        tx.work.uncounted.update(orjson.loads(bucket.waiters))
    write_buckets(tx, [bucket._replace(due_at=None, waiters="[]") for bucket in buckets])
    opened = Counter(lane.blocked_on for lane in open_blocked(tx, dict.fromkeys([b.key for b in buckets], STEP)))
    if more := [key for key, number in opened.items() if number == STEP]:
        tx.batch("insert_due", {"at": tx.now, "key": more, "what": OPEN_LIMIT, "fence": 0})


def open_rule(tx: Tx, rule: int) -> None:
    """Open lanes that wait for a limit that was raised or removed, some in one step: see OPEN_RULE."""
    blocked = tx.query("blocked_of_rule", rule=rule, limit=STEP)
    if blocked:
        open_limits(tx, sorted({bucket for bucket, _ in blocked}))
        if len(blocked) == STEP:
            tx.batch("insert_due", {"at": [tx.now], "key": [rule], "what": [OPEN_RULE], "fence": [0]})
