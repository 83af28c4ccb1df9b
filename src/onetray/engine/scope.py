"""What the verbs of one batch share: the transaction, the rows as they stand, the answers.

Owns nothing beyond the batch.
"""

from __future__ import annotations

import random

from onetray.errors import NotFound
from onetray.model import Policy, Row, Verdict
from onetray.store.base import Tx


class Scope:
    def __init__(self, tx: Tx, size: int, chance: random.Random) -> None:
        self.tx = tx
        self.chance = chance
        self.rows: dict[int, Row] = {}
        self.again: set[int] = set()
        """The tasks about which more commands of this batch follow."""
        self.verdicts: list[Verdict] = [Verdict(error=NotFound())] * size

    def answer(self, i: int, verdict: Verdict) -> None:
        self.verdicts[i] = verdict

    def policy(self, row: Row) -> Policy:
        return self.tx.names.policy(row.policy)

    def now_is(self, row: Row) -> Row:
        """Remember how a task stands after a move, for the next command about it in this batch."""
        self.rows[row.key] = row
        return row

    def ended(self, row: Row, state: str, hops: int) -> None:
        """The same for a task that has ended: nobody asks about most of them again."""
        if row.key in self.again:
            self.rows[row.key] = row._replace(
                state=state, version=row.version + hops, owner=None, lease=None, lease_expires_at=None
            )
