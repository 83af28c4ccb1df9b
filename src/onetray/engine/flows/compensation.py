"""Compensation: a new flow that undoes, in reverse order, what a failed or cancelled one has done.

Owns what it is made from. It is written in the transaction that ends the other, and linked with it.
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
    """Write the flow that undoes this one. None when there is nothing to undo."""
    ctx, tx = locked.batch, locked.batch.tx
    locked.save()
    undone = tx.query("to_compensate", job=flow.key)
    if not undone:
        return None
    draft = FlowDraft(
        flow.ns, flow.kind, 0, DRAIN, SEALED, orjson.dumps({"compensates": flow.id}).decode(), None, ENGINE,
        flow.correlation_id, flow.trace, f"compensates {flow.id}", compensates=flow.key,
    )  # fmt: skip
    for stage in undone:
        control = orjson.loads(stage.compensate)
        payload = (
            f'{{"flow":"{flow.id}","stage":{orjson.dumps(stage.name).decode()},"stage_id":"{stage.id}",'
            f'"result":{stage.result or "null"},"payload":{orjson.dumps(control["payload"]).decode()}}}'
        )
        spec = Spec(
            control["ns"], control["queue"], control["kind"], control["policy"], control["max_attempts"],
            control["priority"], None, payload, ENGINE, cause="compensation",
        )  # fmt: skip
        # What one stage could not undo is no reason to leave the others as they are.
        draft.stages.append(
            StageDraft(stage.name, CONTINUE, SEALED, 1, 0, "one", None, None, None, "null", None, tasks=[(spec, ())])
        )
    new, _, _ = write_flow(ctx, draft)
    tx.batch("set_compensation", {"key": [flow.key], "compensation": [new.key]})
    locked.note_flow(flow.key, "flow.compensation_submitted", ENGINE, compensation=new.id)
    return new


def note_outcome(locked: LockedFlows, flow: FlowRow) -> None:
    """Write on both flows how the compensation ended."""
    assert flow.compensates is not None
    type_ = "flow.compensated" if flow.state == SUCCEEDED else "flow.compensation_failed"
    for key in (flow.compensates, flow.key):
        locked.note_flow(key, type_, ENGINE, compensation=flow.id, outcome=flow.state)
