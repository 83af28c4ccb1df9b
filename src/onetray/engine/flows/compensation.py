"""Compensation: a new flow that undoes the stages of a failed or cancelled flow, in reverse order.

The transaction that ends the old flow writes the new one and links the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from onetray.domain.lifecycle import SUCCEEDED
from onetray.domain.rollup import CONTINUE, DRAIN, SEALED
from onetray.engine.flows.create import FlowDraft, StageDraft, write_flow
from onetray.engine.pending_writes import ENGINE
from onetray.engine.submit import Spec
from onetray.store.rows import FlowRow

if TYPE_CHECKING:
    from onetray.engine.flows.locked import LockedFlows


def compensate(locked: LockedFlows, flow: FlowRow) -> FlowRow | None:
    """Write the flow that undoes `flow`. Returns None if there is nothing to undo."""
    tx = locked.batch.tx
    locked.save()
    to_undo = tx.query("to_compensate", job=flow.key)
    if not to_undo:
        return None
    draft = FlowDraft(
        flow.ns, flow.kind, 0, DRAIN, SEALED, orjson.dumps({"compensates": flow.id}).decode(), None, ENGINE,
        flow.correlation_id, flow.trace, f"compensates {flow.id}", compensates=flow.key,
        priority=flow.priority,
    )  # fmt: skip
    for stage in to_undo:
        control = orjson.loads(stage.compensate)
        payload = (
            f'{{"flow":"{flow.id}","stage":{orjson.dumps(stage.name).decode()},"stage_id":"{stage.id}",'
            f'"result":{stage.result or "null"},"payload":{orjson.dumps(control["payload"]).decode()}}}'
        )
        spec = Spec(
            control["ns"], control["queue"], control["kind"], control["policy"], control["max_attempts"],
            control["priority"], None, payload, ENGINE, cause="compensation",
        )  # fmt: skip
        # CONTINUE: if one stage cannot be undone, the others still are.
        draft.stages.append(
            StageDraft(stage.name, CONTINUE, SEALED, 1, 0, "one", None, None, None, "null", None, tasks=[(spec, ())])
        )
    new, _, _ = write_flow(locked.batch, draft)
    tx.batch("set_compensation", {"key": [flow.key], "compensation": [new.key]})
    locked.note_flow(flow.key, "flow.compensation_submitted", ENGINE, compensation=new.id)
    return new


def note_outcome(locked: LockedFlows, flow: FlowRow) -> None:
    """Record the outcome of the compensation as a note on both flows."""
    assert flow.compensates is not None
    type_ = "flow.compensated" if flow.state == SUCCEEDED else "flow.compensation_failed"
    for key in (flow.compensates, flow.key):
        locked.note_flow(key, type_, ENGINE, compensation=flow.id, outcome=flow.state)
