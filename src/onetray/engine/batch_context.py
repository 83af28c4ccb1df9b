"""The state that the verbs of one batch share: the transaction, current rows, and verdicts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onetray.config import Limits
from onetray.domain.errors import NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import Verdict
from onetray.engine.breakers import Outcomes
from onetray.engine.flows.locked import LockedFlows
from onetray.engine.slots import LimitChanges
from onetray.store.base import Tx
from onetray.store.rows import TaskRow

if TYPE_CHECKING:
    from onetray.engine.flows.create import Drafts
    from onetray.engine.submit_windows import At, SubmitWindow


class FlowUnlocked(Exception):
    """The batch needs the locks of more flows than it took. It runs again with them, and trusts no report's flow."""

    def __init__(self, flows: Iterable[int] = ()) -> None:
        super().__init__()
        self.flows = set(flows)


class BatchContext:
    def __init__(self, tx: Tx, size: int, rng: random.Random, limits: Limits) -> None:
        self.tx = tx
        self.rng = rng
        self.limits = limits
        self.locked = LockedFlows(self)
        self.outcomes = Outcomes(tx)
        self.limit_changes = LimitChanges(tx)
        self.drafts: Drafts | None = None
        """New flows, stages and tasks of flows that the batch's commands submit."""
        self.rows: dict[int, TaskRow] = {}
        self.keep_all_rows = False
        """Whether to keep the rows of ended tasks: flow commands between the task commands may need them."""
        self.unclaimed_new: set[int] = set()
        """Tasks that this batch submitted, replaced, or opened with their stage, as claimable and has not claimed."""
        self.with_more_commands: set[int] = set()
        """Tasks for which this batch has further commands."""
        self.windows: dict[At, SubmitWindow] = {}
        """The locked windows of debounced and throttled submits."""
        self.runs_again = False
        """Whether the batch runs again, with flows locked that its claims could not lock."""
        self.reset_verdicts(size)

    def reset_verdicts(self, size: int) -> None:
        self.verdicts: list[Verdict] = [Verdict(error=NotFound())] * size

    def answer(self, i: int, verdict: Verdict) -> None:
        self.verdicts[i] = verdict

    def policy(self, row: TaskRow) -> Policy:
        return self.tx.names.policy(row.policy)

    def can_only_finish(self, row: TaskRow) -> bool:
        """Whether the task must not be queued again: its cancel was requested, or its stage is ending."""
        return row.cancel_at is not None or (row.stage is not None and self.locked.can_only_finish(row))

    def compensates(self, row: TaskRow) -> bool:
        """Whether the task undoes a stage of another flow: if it fails, it becomes a dead letter."""
        return row.stage is not None and self.locked.flows[row.job].compensates is not None

    def update_row(self, row: TaskRow) -> TaskRow:
        """Keep the row after a move, for the next command about the task in this batch."""
        self.rows[row.key] = row
        return row

    def update_ended_row(self, row: TaskRow, state: str, hops: int) -> None:
        """The same for a task that has ended. Its row is kept only if a later command needs it."""
        if self.keep_all_rows or row.key in self.with_more_commands:
            self.rows[row.key] = row._replace(
                state=state, version=row.version + hops, owner=None, lease=None, lease_expires_at=None, slots=None
            )
