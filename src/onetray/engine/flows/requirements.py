"""What the verbs about flows and stages share: what each requires, and the answer to it.

A requirement raises before anything is written.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.domain.actions import actions_by_state, flow_refuses, stage_refuses
from onetray.domain.errors import IllegalTransition, NotApprover
from onetray.domain.flow import ANYBODY, Placed, may_answer, not_approver
from onetray.domain.flow_commands import Answer, FlowCommand, SubmitFlow, WaitStage
from onetray.domain.lifecycle import FLOW, RUNNING, STAGE
from onetray.domain.machine import SYSTEM, Machine, Transition
from onetray.domain.refusal import refusal_text
from onetray.domain.task import Verdict
from onetray.engine.batch_context import BatchContext
from onetray.engine.flows.advance import settle
from onetray.engine.pending_writes import actor
from onetray.engine.refusals import NO_RETRY, refuse_retry
from onetray.store.rows import FlowRow, StageRow


def flow_actor(command: FlowCommand | SubmitFlow) -> str:
    return actor(command.actor, command.actor_name)


def actions_now(batch: BatchContext, row: FlowRow | StageRow, actor_kind: str) -> tuple[str, ...]:
    """What the engine would accept now from this actor."""
    if isinstance(row, StageRow):
        flow = batch.locked.flows[row.job]
        is_current = flow.current == row.key
        refused = stage_refuses(row, is_current=is_current, flow_state=flow.state, flow_ending=flow.ending)
        return tuple(a for a in actions_by_state(STAGE.entity, row.state, actor_kind) if a not in refused)
    if row.state in FLOW.terminal:
        refused = frozenset(NO_RETRY if refuse_retry(batch.tx.query, [row.key]) else ())
    else:
        refused = flow_refuses(row.ending, row.ending_how)
    return tuple(a for a in actions_by_state(FLOW.entity, row.state, actor_kind) if a not in refused)


def require_allowed(
    batch: BatchContext, machine: Machine, transition: Transition, row: FlowRow | StageRow, command: FlowCommand
) -> None:
    """Raise IllegalTransition if the lifecycle does not allow this actor the transition from this state."""
    if row.state in transition.sources and command.actor in transition.by:
        return
    allowed = actions_now(batch, row, command.actor)
    by = f" by a {command.actor}" if row.state in transition.sources else ""
    raise IllegalTransition(
        f"{refusal_text(machine.entity, row.state, transition.name)}{by}; "
        f"allowed to a {command.actor} now: {', '.join(allowed) or 'nothing'}",
        **{"from": row.state, "attempted": transition.name, "allowed": list(allowed)},
    )


def approval_spec(batch: BatchContext, stage: StageRow) -> dict[str, Any]:
    """The fields of a stage's Approval; empty if it has none."""
    (specs,) = batch.tx.query("specs_of_stage", key=stage.key)
    spec: dict[str, Any] = orjson.loads(specs.approval) if specs.approval else {}
    return spec


def require_approver(stage: StageRow, approval: dict[str, Any], command: Answer | WaitStage) -> None:
    """Raise NotApprover unless the approval is for anybody, for this user, or for one of the user's groups."""
    owner = approval.get("owner") or ANYBODY
    if command.actor != SYSTEM and not may_answer(owner, command.actor_name, command.actor_groups):
        raise NotApprover(not_approver(stage.name, owner, command.actor_name), stage=stage.id, owner=owner)


def require_open(batch: BatchContext, machine: Machine, row: FlowRow | StageRow, verb: str, actor_kind: str) -> None:
    ending = row.ending is not None
    if row.state in machine.terminal or ending:
        is_ending = ending and row.state not in machine.terminal
        raise IllegalTransition(
            refusal_text(machine.entity, row.state, verb, is_ending=is_ending),
            **{"from": row.state, "attempted": verb, "allowed": list(actions_now(batch, row, actor_kind))},
        )


def placed_verdict(
    batch: BatchContext, row: FlowRow | StageRow, command: FlowCommand, repeated: bool = False, **added: Any
) -> Verdict:
    """Settle the batch. Returns the state of the flow or stage after that."""
    settle(batch)
    machine = FLOW if isinstance(row, FlowRow) else STAGE
    now = batch.locked.flows[row.key] if machine is FLOW else batch.locked.stages[row.key]
    ending = None if now.state in machine.terminal else now.ending
    allowed = actions_now(batch, now, command.actor)
    not_now = tuple(a for a in actions_by_state(machine.entity, now.state, command.actor) if a not in allowed)
    return Verdict(Placed(
        now.id, machine.entity, now.state, now.version, command.actor, repeated, ending=ending, not_now=not_now, **added
    ))  # fmt: skip


def require_takes_tasks(batch: BatchContext, stage: StageRow, actor_kind: str) -> None:
    require_open(batch, STAGE, stage, "take tasks", actor_kind)
    if stage.state == RUNNING and not stage.takes_more:
        raise IllegalTransition(
            f"the stage {stage.name!r} is running and takes no more tasks",
            **{"from": stage.state, "attempted": "take tasks", "allowed": list(actions_now(batch, stage, actor_kind))},
        )
