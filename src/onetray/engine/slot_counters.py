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

    def __init__(self, rule: RuleRow, row: BucketRow, now: int) -> None:
        self.rule, self.row = rule, row
        self._rate = rate_of(rule, row, now) if rule.period is not None else None
        self.free = free_slots(rule, row, now)
        self.taken = 0
        self.turned_away = False
        """Whether tasks wait for it, so that claims have to be woken when it has a slot."""

    @property
    def has_slots(self) -> bool:
        """Whether a held task counts in it. A rate counts starts only."""
        return self.rule.what == CONCURRENCY

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
        if self.turned_away and self.free <= 0:
            waiters = orjson.loads(row.waiters)
            if not self.rule.path and queue not in waiters:
                row = row._replace(waiters=orjson.dumps(sorted([*waiters, queue])).decode())
            if self._rate is not None and self.rule.most and row.due_at is None:
                at = self._rate.next_start_at() or tx.now
                tx.batch("insert_due", {"at": [at], "key": [row.key], "what": [OPEN_LIMIT], "fence": [0]})
                row = row._replace(due_at=at)
        return None if row == self.row else row


def free_slots(rule: RuleRow, row: BucketRow, now: int) -> int:
    if not rule.counted:
        return 0
    return max(0, rule.most - row.running) if rule.period is None else rate_of(rule, row, now).allowed()


class LockedLane:
    """A locked lane, and what this claim takes from it."""

    def __init__(self, row: LaneRow) -> None:
        self.row = row
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
        return self.blocked_on is not None and self.blocked_on.free <= 0


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
