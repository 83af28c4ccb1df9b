"""The flows of a batch: locked, with the stages that its commands touch, and what has happened to their tasks.

Owns the bookkeeping: counters, the moves of stages and flows in their order, what has to be written at the end. What
follows from it is decided in advance.py.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from onetray import failpoints
from onetray.domain.lifecycle import (
    BLOCKED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW_PAUSED,
    PENDING,
    RUNNING,
    STAGE,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.machine import Transition
from onetray.engine.pending_writes import ENGINE
from onetray.store.rows import FlowRow, StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

_COUNTED = {BLOCKED, WAITING_INPUT, SUCCEEDED, FAILED, DEAD_LETTERED, CANCELLED}
"""The states of a task that its stage has a counter of, by the same name."""
_SAVED_STAGE = (
    "key", "sealed", "opened_to", "opened_at", "due_at", "ending", "ending_why", "deciding", "total", "open", "blocked",
    "waiting_input", "succeeded", "partly", "failed", "dead_lettered", "cancelled", "redriven", "metrics",
)  # fmt: skip
_SAVED_FLOW = (
    "key", "sealed", "current", "ending", "ending_how", "ending_why", "ending_by", "stages", "stages_open", "succeeded",
    "partial", "failed", "cancelled", "skipped", "ignored", "chained", "amends", "context",
)  # fmt: skip


class FlowMember(Protocol):
    """A task as far as its stage is concerned: one that is there, or one that is about to be."""

    @property
    def key(self) -> int: ...
    @property
    def job(self) -> int: ...
    @property
    def stage(self) -> int | None: ...
    @property
    def unmet(self) -> int: ...
    @property
    def control(self) -> int: ...


StageEnd = tuple[Transition, str, str | None, str | None]
"""How the end of a stage is told: the transition, by whom, why, in which trace."""


class LockedFlows:
    """The flows that a transaction has locked."""

    def __init__(self, batch: BatchContext) -> None:
        self.batch = batch
        self.flows: dict[int, FlowRow] = {}
        self.stages: dict[int, StageRow] = {}
        self.started: set[int] = set()
        """Stages of which a task was started."""
        self.touched: set[int] = set()
        """Stages about which something may have to be decided."""
        self.flows_touched: set[int] = set()
        self.ended: list[tuple[TaskRow, str]] = []
        """Tasks that have ended, and how: others may depend on them."""
        self.succeeding: set[int] = set()
        """Tasks whose success is written, and whose dependents have not been told of it yet."""
        self.answers: list[tuple[TaskRow, str, str | None]] = []
        """Control tasks that have ended, how, and their results."""
        self.stage_ends: dict[int, StageEnd] = {}
        """How a stage that is being ended is to end: the transition, by whom, and why."""
        self.budget: list[int] = []
        """How many tasks this transaction may still cancel because of what became of their flows."""
        self._dirty_stages: set[int] = set()
        self._dirty_flows: set[int] = set()
        self._waves: list[dict[Transition, dict[str, list[Any]]]] = []
        self._wave_of: dict[int, int] = defaultdict(int)

    def lock(self, keys: list[int]) -> None:
        """Lock flows. Once for a transaction, before any task: sorted, so that two cannot wait for each other."""
        for flow in self.batch.tx.lock_flows(sorted(keys)):
            self.flows[flow.key] = flow

    def load(self, rows: list[TaskRow]) -> None:
        """Read the stages of these tasks, whose flows are locked."""
        self.load_stages({row.stage for row in rows if row.stage is not None})

    def load_stages(self, keys: set[int]) -> None:
        new = sorted(keys - self.stages.keys())
        if new:
            self.remember(self.batch.tx.query("stages_by_key", keys=new))

    def remember(self, found: list[StageRow]) -> list[StageRow]:
        """Stages as they stand: what was changed in this transaction, and not saved yet, counts."""
        return [self.stages.setdefault(row.key, row) for row in found]

    def stage(self, key: int) -> StageRow:
        if key not in self.stages:
            self.load_stages({key})
        return self.stages[key]

    def current(self, flow: FlowRow) -> StageRow | None:
        return None if flow.current is None else self.stage(flow.current)

    # What happens to the tasks.

    def moved(
        self, row: TaskRow, target: str, result: str | None = None, *, partly: bool = False, started: bool = False
    ) -> None:
        """Count a task's move. It is the row as it stood before."""
        assert row.stage is not None
        if row.control:
            if target in TASK.terminal:
                self.answers.append((row, target, result))
            return
        stage = self.stage(row.stage)
        changes: dict[str, int] = {}
        if row.state in _COUNTED:
            changes[row.state] = getattr(stage, row.state) - 1
        if target in _COUNTED:
            changes[target] = changes.get(target, getattr(stage, target)) + 1
        if target in TASK.terminal:
            changes["open"] = stage.open - 1
            self.ended.append((row, target))
            if partly:
                changes["partly"] = stage.partly + 1
        if started:
            self.started.add(row.stage)
        if changes:
            self.change(stage, **changes)
        self.touched.add(row.stage)

    def succeeded(self, rows: list[TaskRow]) -> None:
        """Many successes at once, none of which says more than its result."""
        by_stage: dict[int, int] = defaultdict(int)
        for row in rows:
            assert row.stage is not None
            by_stage[row.stage] += 1
            self.ended.append((row, SUCCEEDED))
        for key, n in by_stage.items():
            stage = self.stage(key)
            self.change(stage, open=stage.open - n, succeeded=stage.succeeded + n)
            self.started.add(key)
            self.touched.add(key)

    def holds_back(self, row: FlowMember) -> bool:
        """Whether a queued task may not be claimed, whatever its own time says."""
        if row.stage is None:
            return False
        flow, stage = self.flows[row.job], self.stage(row.stage)
        if flow.state in (CREATED, FLOW_PAUSED) or flow.ending is not None or stage.ending is not None:
            return True
        if row.control:
            return stage.deciding != row.key or stage.state not in (CREATED, WAITING)
        return row.unmet > 0 or stage.state not in (PENDING, RUNNING) or row.key > (stage.opened_to or 0)

    def can_only_finish(self, row: TaskRow) -> bool:
        """Whether a task may only finish, and never be queued again: its stage has ended, or is about to."""
        if row.stage is None:
            return False
        stage = self.stage(row.stage)
        return stage.state in STAGE.terminal or stage.ending is not None or self.flows[row.job].ending is not None

    # What happens to the stages and flows.

    def change(self, stage: StageRow, **columns: Any) -> StageRow:
        changed = self.stages[stage.key] = self.stages[stage.key]._replace(**columns)
        self._dirty_stages.add(stage.key)
        return changed

    def change_flow(self, flow: FlowRow, **columns: Any) -> FlowRow:
        changed = self.flows[flow.key] = self.flows[flow.key]._replace(**columns)
        self._dirty_flows.add(flow.key)
        return changed

    def touch(self, stage: StageRow) -> None:
        self.touched.add(stage.key)
        self.flows_touched.add(stage.job)

    def move_stage(
        self,
        transition: Transition,
        stage: StageRow,
        by: str = ENGINE,
        *,
        cause: str | None = None,
        detail: str | None = None,
        trace: str | None = None,
        **columns: Any,
    ) -> StageRow:
        stage = self.stages[stage.key]
        self._note(transition, stage.job, stage, by, cause, trace, detail, columns)
        changed = stage._replace(state=transition.target, version=stage.version + 1)
        if transition is STAGE.start and stage.started_at is None:
            changed = changed._replace(started_at=self.batch.tx.now)
        self.stages[stage.key] = changed
        return changed

    def move_flow(
        self,
        transition: Transition,
        flow: FlowRow,
        by: str = ENGINE,
        *,
        cause: str | None = None,
        detail: str | None = None,
        trace: str | None = None,
        **columns: Any,
    ) -> FlowRow:
        flow = self.flows[flow.key]
        self._note(transition, flow.key, flow, by, cause, trace, detail, columns)
        changed = flow._replace(state=transition.target, version=flow.version + 1)
        if transition.target == RUNNING and flow.started_at is None:
            changed = changed._replace(started_at=self.batch.tx.now)
        self.flows[flow.key] = changed
        return changed

    def _note(
        self,
        transition: Transition,
        job: int,
        row: FlowRow | StageRow,
        by: str,
        cause: str | None,
        trace: str | None,
        detail: str | None,
        columns: dict[str, Any],
    ) -> None:
        """The nth move of a flow and its stages goes into the nth wave: each flow's moves are written in their order,
        and those of many flows together."""
        n = self._wave_of[job]
        self._wave_of[job] = n + 1
        if n == len(self._waves):
            self._waves.append({})
        batch = self._waves[n].setdefault(transition, defaultdict(list))
        for name, value in (
            ("key", row.key), ("version", row.version), ("was", row.state), ("at", self.batch.tx.now), ("actor", by),
            ("cause", cause), ("trace", trace), ("detail", detail), *columns.items(),
        ):  # fmt: skip
            batch[name].append(value)

    def note_flow(
        self, flow: int, type_: str, by: str, *, cause: str | None = None, trace: str | None = None, **facts: Any
    ) -> None:
        self.write_moves()
        payload = orjson.dumps({k: v for k, v in facts.items() if v is not None}).decode() if facts else None
        self.batch.tx.batch("insert_flow_note", {
            "key": [flow], "type": [type_], "at": [self.batch.tx.now], "actor": [by], "cause": [cause],
            "trace": [trace], "payload": [payload],
        })  # fmt: skip

    def write_moves(self) -> None:
        """Write what stages and flows have done so far, so that what follows comes after it in the log."""
        for wave in self._waves:
            for transition, columns in wave.items():
                self.batch.tx.move((transition,), columns)
                failpoints.hit("cascading")
        self._waves = []
        self._wave_of.clear()

    def save(self) -> None:
        """Write the moves, then what else has changed."""
        self.write_moves()
        for statement, fields, rows in (
            ("save_stage", _SAVED_STAGE, [self.stages[k] for k in sorted(self._dirty_stages)]),
            ("save_flow", _SAVED_FLOW, [self.flows[k] for k in sorted(self._dirty_flows)]),
        ):
            if rows:
                self.batch.tx.batch(statement, {f: [getattr(r, f) for r in rows] for f in fields})
        self._dirty_stages.clear()
        self._dirty_flows.clear()
        failpoints.hit("settled")
