"""The locked flows of a batch, with the stages that its commands change.

Owns the counters, the moves of stages and flows in their order, and the changed rows to write at the end. advance.py
decides what follows from them.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from onetray import failpoints
from onetray.domain.lifecycle import (
    BLOCKED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    FLOW_PAUSED,
    HELD,
    PENDING,
    RUNNING,
    STAGE,
    SUCCEEDED,
    TASK,
    WAITING,
    WAITING_INPUT,
)
from onetray.domain.machine import Transition
from onetray.engine.flows.stage_errors import StageErrors, messages_of_failure
from onetray.engine.pending_writes import ENGINE, event_detail
from onetray.store.rows import FlowRow, StageRow, TaskRow

if TYPE_CHECKING:
    from onetray.engine.batch_context import BatchContext

_COUNTED_STATES = {BLOCKED, WAITING_INPUT, SUCCEEDED, FAILED, DEAD_LETTERED, CANCELLED}
"""Task states for which a stage has a counter of the same name."""
_SAVED_STAGE = (
    "key", "sealed", "opened_to", "opened_at", "due_at", "ending", "ending_why", "ending_how", "deciding", "total",
    "open", "blocked", "waiting_input", "succeeded", "partly", "failed", "dead_lettered", "cancelled", "redriven",
    "retrying", "metrics", "error_count",
)  # fmt: skip
_SAVED_FLOW = (
    "key", "sealed", "current", "ending", "ending_how", "ending_why", "ending_by", "stages", "stages_open", "succeeded",
    "partial", "failed", "cancelled", "skipped", "ignored", "chained", "amends", "context", "priority",
)  # fmt: skip


class FlowMember(Protocol):
    """The columns that decide whether a task of a flow is claimable: of a TaskRow, or of a new task."""

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


def _is_retried(row: TaskRow) -> bool:
    """Whether an attempt has failed before the one that the task has or waits for."""
    return row.attempts - (row.state in HELD) > 0


StageEnd = tuple[Transition, str, str | None, str | None]
"""How a stage ends: the transition, its actor, cause and trace."""


class LockedFlows:
    def __init__(self, batch: BatchContext) -> None:
        # Not a reference: a batch and what it has claimed are freed when it ends, not when cycles are collected.
        self.batch: BatchContext = weakref.proxy(batch)
        self.flows: dict[int, FlowRow] = {}
        self.stages: dict[int, StageRow] = {}
        self.started: set[int] = set()
        """Stages of which a task has started."""
        self.touched: set[int] = set()
        """Stages that changed, so that `settle` has to decide about them."""
        self.flows_touched: set[int] = set()
        self.ended: list[tuple[TaskRow, str]] = []
        """Ended tasks and their states, for the tasks that depend on them."""
        self.new_successes: set[int] = set()
        """Succeeded tasks whose dependents are not updated yet."""
        self.ended_controls: list[tuple[TaskRow, str, str | None]] = []
        """Ended control tasks, their states and their results."""
        self.stage_ends: dict[int, StageEnd] = {}
        """How the stages that are ending will end."""
        self.budget: list[int] = []
        """How many tasks this transaction may still cancel because their flow or stage is ending."""
        self.errors = StageErrors(batch.tx)
        self._dirty_stages: set[int] = set()
        self._dirty_flows: set[int] = set()
        self._rounds: list[dict[Transition, dict[str, list[Any]]]] = []
        self._round_of: dict[int, int] = defaultdict(int)

    def lock(self, keys: list[int]) -> None:
        """Lock flows, before any task. Sorted, so that two transactions cannot deadlock."""
        for flow in self.batch.tx.lock_flows(sorted(keys)):
            self.flows[flow.key] = flow

    def lock_with_tasks(self, flows: list[int], tasks: list[int]) -> list[TaskRow]:
        """Lock flows, then tasks, and read the stages of these tasks."""
        flow_rows, rows, stages = self.batch.tx.lock_flows_and_tasks(flows, tasks)
        self.flows |= {flow.key: flow for flow in flow_rows}
        self.with_changes(stages)
        return rows

    def lock_free(self, keys: set[int]) -> set[int]:
        """Lock flows after tasks, without waiting. Returns those that another transaction has locked."""
        for flow in self.batch.tx.lock_free_flows(sorted(keys - self.flows.keys())):
            self.flows[flow.key] = flow
        return keys - self.flows.keys()

    def load(self, rows: list[TaskRow]) -> None:
        """Read the stages of these tasks. Their flows must be locked."""
        self.load_stages({row.stage for row in rows if row.stage is not None})

    def load_stages(self, keys: set[int]) -> None:
        new = sorted(keys - self.stages.keys())
        if new:
            self.with_changes(self.batch.tx.query("stages_by_key", keys=new))

    def with_changes(self, rows: list[StageRow]) -> list[StageRow]:
        """The same stages, with changes of this transaction that are not saved yet."""
        return [self.stages.setdefault(row.key, row) for row in rows]

    def stage(self, key: int) -> StageRow:
        if key not in self.stages:
            self.load_stages({key})
        return self.stages[key]

    def runs(self, stage: int) -> bool:
        """Whether a stage that was read runs, and its flow, too."""
        row = self.stages[stage]
        return row.state == self.flows[row.job].state == RUNNING

    def current(self, flow: FlowRow) -> StageRow | None:
        return None if flow.current is None else self.stage(flow.current)

    def is_deleted(self, row: TaskRow) -> bool:
        """Whether the task belongs to a flow that is being deleted."""
        return row.stage is not None and self.flows[row.job].deleted_at is not None

    # Moves of tasks.

    def count_move(
        self,
        row: TaskRow,
        target: str,
        result: str | None = None,
        *,
        partly: bool = False,
        started: bool = False,
        given_back: int = 0,
        error: str | None = None,
    ) -> None:
        """Count a task's move in its stage. `row` is the row before it; `given_back` is 1 if it returns its attempt."""
        assert row.stage is not None
        if target in (FAILED, DEAD_LETTERED):
            self.add_errors(row, messages_of_failure(error))
        if row.control:
            if target in TASK.terminal:
                self.ended_controls.append((row, target, result))
            return
        stage = self.stage(row.stage)
        changes: dict[str, int] = {}
        if row.state in _COUNTED_STATES:
            changes[row.state] = getattr(stage, row.state) - 1
        if target in _COUNTED_STATES:
            changes[target] = changes.get(target, getattr(stage, target)) + 1
        retries = target not in TASK.terminal and row.attempts - given_back - (target in HELD) > 0
        if retries != _is_retried(row):
            changes["retrying"] = stage.retrying + (1 if retries else -1)
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

    def start_stages(self, keys: set[int]) -> None:
        """Note that a task of these stages has started. Their flows must be locked."""
        self.load_stages(keys)
        self.started |= keys
        self.touched |= keys

    def add_errors(self, row: TaskRow, messages: list[str]) -> None:
        """Record the errors that a task ended with at its stage."""
        stage = self.stage(row.stage or 0)
        self.errors.add(row, messages, stage.error_count)
        self.change(stage, error_count=stage.error_count + len(messages))

    def count_plain_successes(self, rows: list[TaskRow]) -> None:
        """Count many successes without extras."""
        by_stage: dict[int, int] = defaultdict(int)
        retried: dict[int, int] = defaultdict(int)
        for row in rows:
            assert row.stage is not None
            by_stage[row.stage] += 1
            retried[row.stage] += _is_retried(row)
            self.ended.append((row, SUCCEEDED))
        for key, n in by_stage.items():
            stage = self.stage(key)
            retrying = stage.retrying - retried[key]
            self.change(stage, open=stage.open - n, succeeded=stage.succeeded + n, retrying=retrying)
            self.started.add(key)
            self.touched.add(key)

    def holds_back(self, row: FlowMember) -> bool:
        """Whether its flow or stage keeps a queued task from being claimable, even if its `run_at` has come."""
        if row.stage is None:
            return False
        flow, stage = self.flows[row.job], self.stage(row.stage)
        if flow.state in (CREATED, FLOW_PAUSED) or flow.ending is not None or stage.ending is not None:
            return True
        if row.control:
            return stage.deciding != row.key or stage.state not in (CREATED, WAITING)
        return row.unmet > 0 or stage.state not in (PENDING, RUNNING) or row.key > (stage.opened_to or 0)

    def can_only_finish(self, row: TaskRow) -> bool:
        """Whether a task must not be queued again: its stage has ended or is ending."""
        if row.stage is None:
            return False
        stage = self.stage(row.stage)
        return stage.state in STAGE.terminal or stage.ending is not None or self.flows[row.job].ending is not None

    # Changes of stages and flows.

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
        self._add_move(transition, stage.job, stage, by, cause, trace, detail, columns)
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
        self._add_move(transition, flow.key, flow, by, cause, trace, detail, columns)
        changed = flow._replace(state=transition.target, version=flow.version + 1)
        if transition.target == RUNNING and flow.started_at is None:
            changed = changed._replace(started_at=self.batch.tx.now)
        self.flows[flow.key] = changed
        return changed

    def _add_move(
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
        """Add the nth move of a flow and its stages to the nth round: each flow keeps the order of its moves, and many
        flows share a statement."""
        n = self._round_of[job]
        self._round_of[job] = n + 1
        if n == len(self._rounds):
            self._rounds.append({})
        move_columns = self._rounds[n].setdefault(transition, defaultdict(list))
        for name, value in (
            ("key", row.key), ("version", row.version), ("was", row.state), ("actor", by), ("cause", cause),
            ("at", max(self.batch.tx.now, row.updated_at)), ("trace", trace), ("detail", detail), ("ns", row.ns),
            ("job", job), ("fence", 0), ("attempts", 0), *columns.items(),
        ):  # fmt: skip
            move_columns[name].append(value)

    def note_flow(
        self, flow: int, type_: str, by: str, *, cause: str | None = None, trace: str | None = None, **facts: Any
    ) -> None:
        self.write_moves()
        self.batch.tx.note("insert_flow_note", {
            "key": [flow], "type": [type_], "at": [self.batch.tx.now], "actor": [by], "cause": [cause],
            "trace": [trace], "payload": [event_detail(**facts) if facts else None],
        })  # fmt: skip

    def write_moves(self) -> None:
        """Write the moves so far, so that later events follow them in the log."""
        for moves in self._rounds:
            for transition, columns in moves.items():
                self.batch.tx.move((transition,), columns)
                failpoints.hit("cascading")
        self._rounds = []
        self._round_of.clear()

    def save(self) -> None:
        """Write the moves, then the changed rows."""
        self.write_moves()
        self.errors.write()
        for statement, fields, rows in (
            ("save_stage", _SAVED_STAGE, [self.stages[k] for k in sorted(self._dirty_stages)]),
            ("save_flow", _SAVED_FLOW, [self.flows[k] for k in sorted(self._dirty_flows)]),
        ):
            if rows:
                self.batch.tx.batch(statement, {f: [getattr(r, f) for r in rows] for f in fields})
        self._dirty_stages.clear()
        self._dirty_flows.clear()
        failpoints.hit("settled")
