"""The counters and the lanes that a claim has locked: how many slots are free, whose turn it is.

Owns the arithmetic of one claim. limited_claim.py locks, picks and writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from onetray.domain.limits import CONCURRENCY
from onetray.engine.slots import OPEN_LIMIT
from onetray.explain.limits import rate_of
from onetray.store.base import Tx
from onetray.store.limit_rows import BucketRow, LaneRow, RuleRow
from onetray.store.rows import ClaimedRow

SCALE = 100_000
"""The virtual time that a task of a lane with the weight 1 takes."""


class SlotCounter:
    """A locked counter: how many slots are free, and how many this claim takes."""

    def __init__(self, rule: RuleRow, row: BucketRow, now: int, freed: int = 0) -> None:
        """`freed`: how many slots the reports of this transaction give back."""
        self._was, self.freed = row, freed
        self.rule, self.row = rule, row._replace(running=row.running - freed)
        self._rate = rate_of(rule, row, now) if rule.period is not None else None
        self.free = free_slots(rule, self.row, now)
        self.taken = 0
        self._reserved = 0
        self.turned_away = False
        """Whether tasks wait for it, so that claims have to be woken when it has a slot."""

    @property
    def has_slots(self) -> bool:
        """Whether a held task counts in it. A rate counts starts only."""
        return self.rule.what == CONCURRENCY

    @property
    def unused(self) -> int:
        """How many slots it has, for this claim or for others."""
        return self.free + self._reserved

    @property
    def is_full(self) -> bool:
        return self.unused <= 0

    def reserve(self, number: int) -> bool:
        """Leave so many free slots to other queues, whose tasks have waited for them. Returns whether there are any."""
        number = min(number, self.free)
        self.free -= number
        self._reserved += number
        return number > 0

    def reserve_for_others(self, queue: int) -> bool:
        """Leave what this transaction frees to the other queues whose claims were turned away, if there are any."""
        return bool(self.freed and {*orjson.loads(self.row.waiters)} - {queue}) and self.reserve(self.freed)

    def take(self, number: int) -> None:
        self.free -= number
        self.taken += number

    def after(self, tx: Tx, queue: int) -> BucketRow | None:
        """The row after the claim; None if nothing has changed."""
        row = self.row
        if self.has_slots:
            row = row._replace(running=row.running + self.taken)
        elif self._rate is not None:
            self._rate.now = max(self._rate.now, tx.now)
            self._rate.start(self.taken)
            row = row._replace(starts=orjson.dumps(self._rate.starts).decode(), next_at=self._rate.next_at)
        waiters = orjson.loads(row.waiters)
        if self.freed and waiters and not self.is_full:
            tx.work.uncounted.update(waiters)
            row = row._replace(waiters="[]")
        if self.turned_away and self.is_full:
            if not self.rule.path and queue not in waiters:
                row = row._replace(waiters=orjson.dumps(sorted([*waiters, queue])).decode())
            at = self._rate.next_start_at() or tx.now if self._rate is not None and self.rule.most else None
            # There may be a due row already, and a later one if the rate was slower then.
            if at is not None and (row.due_at is None or at < row.due_at):
                tx.batch("insert_due", {"at": [at], "key": [row.key], "what": [OPEN_LIMIT], "fence": [0]})
                row = row._replace(due_at=at)
        return None if row == self._was else row


def free_slots(rule: RuleRow, row: BucketRow, now: int) -> int:
    if not rule.counted:
        return 0
    return max(0, rule.most - row.running) if rule.period is None else rate_of(rule, row, now).allowed()


class LockedLane:
    """A locked lane, and what this claim takes from it."""

    def __init__(self, row: LaneRow, waited_for: SlotCounter | None = None) -> None:
        self.row = row
        self.waited_for = waited_for
        """The counter that has blocked it, and has slots of this transaction for it."""
        self.values: dict[str, Any] = orjson.loads(row.value)
        self.counters: list[SlotCounter] = []
        self.blocked_on: SlotCounter | None = None
        self.picked: list[ClaimedRow] = []
        self.is_drained = False
        self.step = int(SCALE / row.weight) if row.fair is not None else 1

    def place(self, served: int) -> tuple[int, int, int]:
        """Its place in the order of lanes after so many tasks."""
        return self.row.rank, self.row.turn + served * self.step, self.row.key

    def of_its_rank(self, rows: list[ClaimedRow]) -> list[ClaimedRow]:
        """The first of these tasks, which all have the same rank. If others follow, the lane has their rank now."""
        same = [row for row in rows if row.rank <= self.row.rank]
        if len(same) < len(rows):
            self.row = self.row._replace(rank=rows[len(same)].rank)
        return same

    @property
    def is_blocked(self) -> bool:
        return self.blocked_on is not None and self.blocked_on.is_full


def counter_keys(tx: Tx, values: list[tuple[int, str]]) -> set[int]:
    """The keys of the counters of these limits and values. Adds those that are new."""
    if not values:
        return set()
    known = tx.names.lanes.counters
    if new := [value for value in values if value not in known]:
        columns = {"rule": [rule for rule, _ in new], "value": [value for _, value in new]}
        found = tx.batch("buckets_of_values", columns)
        if len(found) < len(new):
            tx.batch("add_buckets", {"key": tx.new_keys(len(new)), **columns})
            # This transaction may be rolled back: their keys must not be kept.
            return {known[value] for value in values if value in known} | {
                row.key for row in tx.batch("buckets_of_values", columns)
            }
        known.keep({(row.rule, row.value): row.key for row in found})
    return {known[value] for value in values}


def in_turn(lanes: Iterable[LockedLane], before: int, picked: dict[int, Any]) -> list[ClaimedRow]:
    """The tasks that were picked from lanes after the first `before` of all, in the order in which they take turns."""
    new = set(list(picked)[before:])
    rows = [
        ((row.rank, *lane.place(i)[1:]) if lane.row.fair is not None else (row.rank, row.key, 0), row)
        for lane in lanes
        for i, row in enumerate(lane.picked)
        if row.key in new
    ]
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]
