"""Roll-up policies: the outcome of a stage from its tasks, and of a flow from its stages.

Owns the decisions, as pure functions of the counters. Writes nothing: see engine/flows/locked.py.

    strict   the first permanent failure fails the stage at once
    drain    all tasks run to their end; then any failure fails the stage
    mixed    all tasks run to their end; failures and successes together make the stage partial
"""

from __future__ import annotations

from typing import Protocol

from onetray.domain.lifecycle import CANCELLED, FAILED, PARTIAL, SKIPPED, SUCCEEDED

STRICT, DRAIN, MIXED = "strict", "drain", "mixed"
ROLL_UPS = (STRICT, DRAIN, MIXED)
STOP, CONTINUE, IGNORE = "stop", "continue", "ignore"
ON_FAILURE = (STOP, CONTINUE, IGNORE)

OPEN_ENDED, WHEN_DONE, SEALED = 0, 1, 2
"""When a stage or a flow may end: never before it is sealed; when its tasks or stages, at least one, have ended; also
when it is empty."""


class StageCounts(Protocol):
    @property
    def open(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def succeeded(self) -> int: ...
    @property
    def partly(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def dead_lettered(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def sealed(self) -> int: ...


class FlowCounts(Protocol):
    @property
    def stages(self) -> int: ...
    @property
    def stages_open(self) -> int: ...
    @property
    def succeeded(self) -> int: ...
    @property
    def partial(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def sealed(self) -> int: ...


def fails_at_once(policy: str, stage: StageCounts) -> bool:
    return policy == STRICT and stage.failed + stage.dead_lettered > 0


def stage_is_done(stage: StageCounts) -> bool:
    """Whether no task is open and none is expected."""
    return not stage.open and (stage.sealed == SEALED or (stage.sealed == WHEN_DONE and stage.total > 0))


def stage_outcome(policy: str, stage: StageCounts, cancelling: bool = False) -> str:
    """The final state of a stage whose tasks have all ended."""
    bad = stage.failed + stage.dead_lettered
    if cancelling and (bad or stage.cancelled or not stage.succeeded):
        return CANCELLED
    if bad:
        return PARTIAL if policy == MIXED and stage.succeeded else FAILED
    if stage.succeeded:
        return PARTIAL if stage.partly else SUCCEEDED
    return CANCELLED if stage.cancelled else SUCCEEDED


def goes_on(outcome: str, on_failure: str) -> bool:
    """Whether the next stage may open after one with this outcome."""
    return outcome in (SUCCEEDED, PARTIAL, SKIPPED) or on_failure != STOP


def counts_as(outcome: str, on_failure: str) -> str:
    """The flow's counter that a stage with this outcome adds to."""
    return "ignored" if outcome in (FAILED, CANCELLED) and on_failure == IGNORE else outcome


def flow_is_done(flow: FlowCounts) -> bool:
    return not flow.stages_open and (flow.sealed == SEALED or (flow.sealed == WHEN_DONE and flow.stages > 0))


def flow_outcome(policy: str, flow: FlowCounts, cancelling: bool = False) -> str:
    """The final state of a flow whose stages have all ended. Skipped and ignored stages do not count against it."""
    has_success = flow.succeeded + flow.partial > 0
    if cancelling and (flow.cancelled or not flow_is_done(flow)):
        return CANCELLED
    if flow.failed:
        return PARTIAL if policy == MIXED and has_success else FAILED
    if flow.cancelled:
        return PARTIAL if policy == MIXED and has_success else CANCELLED
    return PARTIAL if flow.partial else SUCCEEDED
