"""What the verbs of one batch share: the transaction, the rows as they stand, the answers.

Owns nothing beyond the batch.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from onetray.config import Limits
from onetray.domain.errors import NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import Verdict
from onetray.engine.breakers import Outcomes
from onetray.engine.flows.locked import LockedFlows
from onetray.store.base import Tx
from onetray.store.rows import TaskRow

if TYPE_CHECKING:
    from onetray.engine.flows.create import Drafts


class BatchContext:
    def __init__(self, tx: Tx, size: int, chance: random.Random, limits: Limits) -> None:
        self.tx = tx
        self.chance = chance
        self.limits = limits
        self.locked = LockedFlows(self)
        self.outcomes = Outcomes(tx)
        self.drafts: Drafts | None = None
        """What the commands of the batch want to add to flows."""
        self.rows: dict[int, TaskRow] = {}
        self.keeps_all = False
        """Whether every row may be asked about again: commands about flows come between those about tasks."""
        self.entered: set[int] = set()
        """The tasks that this batch has made claimable by a submit, and that none of its claims has taken."""
        self.again: set[int] = set()
        """The tasks about which more commands of this batch follow."""
        self.verdicts: list[Verdict] = []
        self.expect(size)

    def expect(self, size: int) -> None:
        """Make room for the answers to as many commands."""
        self.verdicts = [Verdict(error=NotFound())] * size

    def answer(self, i: int, verdict: Verdict) -> None:
        self.verdicts[i] = verdict

    def policy(self, row: TaskRow) -> Policy:
        return self.tx.names.policy(row.policy)

    def doomed(self, row: TaskRow) -> bool:
        """Whether a task may only finish: its cancel was requested, or its stage is over."""
        return row.cancel_at is not None or (row.stage is not None and self.locked.doomed(row))

    def now_is(self, row: TaskRow) -> TaskRow:
        """Remember how a task stands after a move, for the next command about it in this batch."""
        self.rows[row.key] = row
        return row

    def ended(self, row: TaskRow, state: str, hops: int) -> None:
        """The same for a task that has ended: nobody asks about most of them again."""
        if self.keeps_all or row.key in self.again:
            self.rows[row.key] = row._replace(
                state=state, version=row.version + hops, owner=None, lease=None, lease_expires_at=None
            )
