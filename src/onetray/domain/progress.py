"""How much of a task, a stage or a flow is done: in tasks by state, and in percent.

    succeeded, partial    100
    failed, cancelled     what had succeeded by then: never 100
    skipped               0; a flow that goes on or has succeeded leaves such a stage out
    open                  what has ended, and what running tasks have reported

Owns these rules, as pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onetray.domain.lifecycle import FLOW, HELD, PARTIAL, QUEUED, SKIPPED, STAGE, SUCCEEDED, TASK
from onetray.domain.task import Task, TaskProgress

WHOLE, NOT_WHOLE = 100, 99
"""All of it, and the most of what failed or was cancelled."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The tasks of a stage or of a whole flow, counted by state."""

    total: int = 0
    queued: int = 0
    held: int = 0
    blocked: int = 0
    waiting_input: int = 0
    succeeded: int = 0
    partly: int = 0
    failed: int = 0
    dead_lettered: int = 0
    cancelled: int = 0
    redriven: int = 0
    retrying: int = 0
    """Open tasks that have a failed attempt behind them; they are counted by their states, too."""
    created: int = 0
    """Open tasks of a stage that has not opened yet. These three and `held` are all open tasks."""
    pending: int = 0
    """Open tasks of an open stage that no worker holds, before their first attempt or after one that was returned."""
    retried: int = 0
    """Open tasks that no worker holds, after a failed attempt."""

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.dead_lettered + self.cancelled + self.redriven


def counts_of_task(task: Task) -> Counts:
    """A single task, counted as one."""
    held = task.state in HELD
    again = task.state == QUEUED and task.attempts > 0
    return Counts(**{
        "total": 1, "held" if held else task.state: 1, "retrying": int(again or (held and task.attempts > 1)),
        "retried": int(again), "pending": int(task.state not in TASK.terminal and not held and not again),
    })  # fmt: skip


def task_percentage(state: str, attempts: int, reported: TaskProgress | None) -> int | None:
    """The share that the handler reported on the current attempt. None if that is unknown."""
    if state == SUCCEEDED:
        return WHOLE
    if reported is None or not reported.total or reported.attempt != attempts or state == QUEUED:
        return None
    return _share(min(reported.done, reported.total), reported.total, state in TASK.terminal)


def stage_percentage(state: str, counts: Counts, reported: float) -> int:
    """`reported` is the progress of the running tasks, each from 0 to 1, added up."""
    if state in (SUCCEEDED, PARTIAL):
        return WHOLE
    if state in STAGE.terminal:
        return 0 if state == SKIPPED else _share(counts.succeeded, counts.total, failed=True)
    return _share(counts.done + reported, counts.total)


def flow_percentage(state: str, stages: Iterable[tuple[str, int]]) -> int:
    """From the state and the percentage of each stage."""
    if state in (SUCCEEDED, PARTIAL):
        return WHOLE
    failed = state in FLOW.terminal
    # A failed flow skips the stages that it does not reach: they are part of what is missing.
    counted = [percentage for stage, percentage in stages if failed or stage != SKIPPED]
    return _share(sum(counted), WHOLE * len(counted), failed)


def _share(done: float, total: float, failed: bool = False) -> int:
    if not total:
        return 0
    return min(int(done * WHOLE // total), NOT_WHOLE if failed else WHOLE)
