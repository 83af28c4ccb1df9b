"""Copy an ended flow: the draft of the new flow, and the new task for each old one.

Owns which stages and tasks are copied, and which stages are carried over whole. Writes nothing. carry_over.py decides
which tasks of a redriven stage do not run again.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from onetray.domain.errors import Conflict
from onetray.domain.lifecycle import PARTIAL, SKIPPED, SUCCEEDED
from onetray.engine.flows.create import FlowDraft, StageDraft
from onetray.engine.flows.dependencies import Member
from onetray.engine.submit import Spec, spec_like
from onetray.store.copied_rows import FlowToCopy, StageToCopy
from onetray.store.rows import FlowRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

PAGE = 10_000


class FlowCopy:
    """A copy of an ended flow that is not written yet."""

    def __init__(self, batch: BatchContext, flow: FlowRow, by: str, cause: str, trace: str | None) -> None:
        self._batch, self._flow, self._by, self._cause, self._trace = batch, flow, by, cause, trace
        (self.old,) = batch.tx.query("flow_to_copy", key=flow.key)
        self.stages: list[StageToCopy] = batch.tx.query("stages_to_copy", job=flow.key)
        self.draft = self._draft_of(self.old)
        self.copies: dict[int, Spec] = {}
        """The new task for each copied one, by its key; also for those that were redriven in their stage."""
        self.first_of: dict[int, int] = {}
        """The first task of each chain of successors in a stage, by successor."""
        self.start = 1
        """The place of the first stage that is not carried over whole."""
        self.left_out: list[int] = []
        """Tasks that are not copied, because they will be spawned again."""
        self._again: set[int] = set()
        """Tasks that run again, or are spawned again by one that does."""

    def _draft_of(self, old: FlowToCopy) -> FlowDraft:
        return FlowDraft(
            old.ns, old.kind, 0, old.roll_up, old.sealed, old.data, old.metadata, self._by, old.correlation_id,
            self._trace or old.trace, self._cause, old.deadline_us, old.context, self._flow.key, old.compensates,
            priority=old.priority, tracestate=None if self._trace else old.tracestate,
        )  # fmt: skip

    def from_stage(self, start: int, carried: Container[int] | None = None, gate: int = 0) -> None:
        """Carry over the stages before this place, and copy the others with their tasks.

        `carried`: the first of these stages was redriven. Its condition is decided, and `gate` says whether it needs
        another approval. These tasks of it do not run again, so what they have spawned is copied, too.
        """
        self.start = start
        for stage in self.stages:
            if stage.ord < start:
                self.draft.stages.append(_carried_over(stage))
                continue
            if stage.carried_from is not None:
                stage = _with_origin(self._batch, stage, stage.carried_from)
            new = _draft_like(stage)
            if carried is not None and stage.ord == start:
                new.control, new.gate = None, gate
            new.tasks = self._copy_members(stage.key, carried)
            if self.old.compensation is not None and is_undone(stage):
                _forget_effects(new.tasks)
            self.draft.stages.append(new)

    def _copy_members(self, stage: int, carried: Container[int] | None) -> list[Member]:
        """Copies of the tasks of a stage, with their dependencies on other copied tasks."""
        first_of, names = successions(self._batch, stage)
        self.first_of |= first_of
        runs_from = self.start if carried is None else self.start + 1
        after, keys = 0, []
        while True:
            page = self._batch.tx.query("members_to_copy", stage=stage, ord=runs_from, after=after, limit=PAGE)
            for row in page:
                spawned_by = self.first_of.get(row.spawned_by or 0, row.spawned_by)
                if carried is not None and (row.key not in carried or spawned_by in self._again):
                    self._again.add(row.key)
                if spawned_by not in self._again:
                    row = row._replace(name=names.get(row.key, row.name))
                    self.copies[row.key] = spec_like(row, self._flow.ns, self._by, self._cause, self._trace)
                    keys.append(row.key)
            if len(page) < PAGE:
                break
            after = page[-1].key
        for key, origin in sorted(first_of.items()):
            if origin in self.copies:
                self.copies[key] = self.copies[origin]
                # The last one of a chain has the last checkpoint.
                self.copies[origin].checkpoint_of = key
        spawned = self._batch.tx.query("spawned_in_stage", stage=stage, after=0)
        self.left_out += [key for (key,) in spawned if key not in self.copies]
        needs: dict[int, list[str]] = {}
        for task, needed in self._batch.tx.query("needs_of", keys=keys) if keys else ():
            if needed in self.copies:
                needs.setdefault(task, []).append(self.copies[needed].id)
        return [(self.copies[key], tuple(needs.get(key, ()))) for key in keys]


def is_undone(stage: StageToCopy) -> bool:
    """Whether the compensation of its flow has undone the stage: it has no effect left to carry over."""
    return stage.compensate is not None and (stage.state in (SUCCEEDED, PARTIAL) or stage.succeeded > 0)


def _forget_effects(members: list[Member]) -> None:
    """Let tasks act anew: under the key of their predecessors, other systems would answer with what was undone."""
    for spec, _ in members:
        spec.idempotency_key = spec.checkpoint_of = None


def _draft_like(stage: StageToCopy) -> StageDraft:
    return StageDraft(
        stage.name, stage.on_failure, stage.sealed, stage.takes_more, stage.gate, stage.collect, stage.condition,
        stage.compensate, stage.approval, stage.data, stage.metadata, stage.type,
    )  # fmt: skip


def _with_origin(batch: BatchContext, stage: StageToCopy, carried_from: int) -> StageToCopy:
    """A carried-over stage, with the columns of the original stage, in which its tasks ran."""
    key: int | None = carried_from
    while key is not None:
        rows = batch.tx.query("stage_carried_from", key=key)
        if not rows:
            raise Conflict(
                f"stage {stage.name!r} was carried over, and the flow in which it ran was deleted: submit it anew"
            )
        stage = stage._replace(**rows[0]._asdict())
        key = stage.carried_from
    return stage


def _carried_over(stage: StageToCopy) -> StageDraft:
    """The draft of a stage that does not run again: it keeps its outcome and its result."""
    draft, has_succeeded = _draft_like(stage), stage.state in (SUCCEEDED, PARTIAL)
    draft.carried_from, draft.carried_as = stage.key, SUCCEEDED if has_succeeded else SKIPPED
    draft.result, draft.metrics, draft.gate, draft.control = stage.result, stage.metrics, 0, None
    if not has_succeeded and not stage.succeeded:
        draft.compensate = None  # Nothing of it succeeded, so there is nothing to undo.
    return draft


def successions(batch: BatchContext, stage: int) -> tuple[dict[int, int], dict[int, str]]:
    """The first task of each chain of successors in a stage, by successor; and the names by first task."""
    first_of: dict[int, int] = {}
    names: dict[int, str] = {}
    for row in batch.tx.query("successors_in_stage", stage=stage):
        origin = first_of.setdefault(row.key, first_of.get(row.retry_of) or row.retry_of)
        if row.name is not None:
            names[origin] = row.name
    return first_of, names
