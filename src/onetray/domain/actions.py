"""Which actions the engine would accept now, of a task, a stage or a flow.

An action is a transition that the lifecycle gives to an actor, or another run of something ended: `retry` of a job,
`redrive` of a task. It is listed if its command would be accepted and change something; a repeated command, which only
returns what an earlier one did, is not. Pure functions of the rows: engine/refusals.py reads what they need besides.
"""

from __future__ import annotations

from typing import Protocol

from onetray.domain.lifecycle import CANCELLED, CREATED, FLOW, MACHINES, TASK
from onetray.domain.machine import USER
from onetray.domain.rollup import goes_on

RETRY, REDRIVE = "retry", "redrive"
HARD = "hard"


def actions_by_state(entity: str, state: str, actor: str = USER) -> tuple[str, ...]:
    """The actions of an actor in this state, if nothing but the state decides."""
    machine = MACHINES[entity]
    if state in machine.terminal:
        if entity == FLOW.entity:
            return (RETRY,)
        return (RETRY, REDRIVE) if entity == TASK.entity and actor == USER else ()
    return machine.actions(state, actor)


def flow_refuses(ending: str | None, ending_how: str | None) -> frozenset[str]:
    """What a flow refuses while it is being ended. A soft cancel can still become a hard one."""
    if ending is None:
        return frozenset()
    return frozenset({"open", "pause", "resume"} | ({"cancel"} if ending_how == HARD else set()))


class StagePlace(Protocol):
    """What decides about a stage besides its state. `ending_how` is its own, not that of its flow."""

    @property
    def on_failure(self) -> str: ...
    @property
    def ending(self) -> str | None: ...
    @property
    def ending_how(self) -> str | None: ...
    @property
    def deciding(self) -> int | None: ...


def stage_refuses(stage: StagePlace, *, is_current: bool, flow_state: str, flow_ending: str | None) -> frozenset[str]:
    """What a stage refuses although its state allows it."""
    refused: set[str] = set()
    if stage.ending is not None:
        refused |= {"wait", "approve", "reject", "skip"}
    if not is_current or flow_state == CREATED:
        refused |= {"approve", "reject"}
    if stage.deciding is not None:
        refused.add("approve")
    if not _can_be_cancelled(stage, is_current, flow_ending):
        refused.add("cancel")
    return frozenset(refused)


def _can_be_cancelled(stage: StagePlace, is_current: bool, flow_ending: str | None) -> bool:
    if not is_current and not goes_on(CANCELLED, stage.on_failure):
        return False
    if stage.ending is None:
        return True
    # A soft cancel of the stage alone can still become a hard one.
    return stage.ending == CANCELLED and flow_ending is None and stage.ending_how not in (None, HARD)
