"""The end of a stage as its event and its row record it: actor, cause, decision, result.

advance.py decides that a stage ends, and with which outcome.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.domain.lifecycle import CANCELLED, CREATED, FAILED, PARTIAL, SKIPPED, STAGE, SUCCEEDED, WAITING
from onetray.domain.machine import Transition
from onetray.domain.rollup import counts_as
from onetray.engine.flows.locked import LockedFlows, StageEnd
from onetray.engine.pending_writes import ENGINE, event_detail
from onetray.store.rows import FlowRow, StageRow

_TRANSITION_TO = {
    SUCCEEDED: STAGE.succeed,
    PARTIAL: STAGE.end_partly,
    FAILED: STAGE.fail,
    CANCELLED: STAGE.cancel,
    SKIPPED: STAGE.skip,
}
_TRANSITION_OF_ANSWER = {"rejected": STAGE.reject, "skipped": STAGE.skip}
_WITH_RESULT = (STAGE.succeed, STAGE.end_partly, STAGE.fail, STAGE.cancel)


def stage_end(locked: LockedFlows, stage: StageRow, outcome: str) -> StageEnd:
    """The transition that ends a stage, with actor, cause and trace. The stage stores the answer of an earlier step."""
    end = locked.stage_ends.pop(stage.key, None)
    if end is None and stage.state in (CREATED, WAITING) and outcome in (FAILED, SKIPPED) and stage.total:
        (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
        answer = orjson.loads(specs.answer) if specs.answer else {}
        if answer.get("verdict") in _TRANSITION_OF_ANSWER:
            why = answer.get("cause") or answer["note"]
            end = _TRANSITION_OF_ANSWER[answer["verdict"]], answer["by"], why, answer.get("trace")
    if end is not None and end[0].target == outcome:
        return end
    flow = locked.flows[stage.job]
    by = flow.ending_by if outcome == flow.ending == CANCELLED else None
    return _TRANSITION_TO[outcome], by or ENGINE, None, None


def decision(flow: FlowRow, stage: StageRow, outcome: str, why: str | None, counter: str) -> str:
    """The roll-up decision, for the payload of the event. `counter`: what the flow counts the stage as."""
    may_be_ignored = counts_as(outcome, stage.on_failure) != outcome
    return event_detail(
        policy=flow.roll_up, on_failure=stage.on_failure, outcome=outcome, total=stage.total, open=stage.open,
        succeeded=stage.succeeded, partly=stage.partly, failed=stage.failed, dead_lettered=stage.dead_lettered,
        cancelled=stage.cancelled, redriven=stage.redriven, why=why,
        ignored=counter != outcome if may_be_ignored else None,
    )  # fmt: skip


def columns_of_end(locked: LockedFlows, stage: StageRow, transition: Transition) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if transition in _WITH_RESULT:
        columns["result"] = collected_result(locked, stage)
    if transition in (STAGE.fail, STAGE.reject, STAGE.end_partly):
        message = stage.ending_why or _what_failed(stage)
        columns["error"] = event_detail(stage=stage.name, message=message)
    return columns


def _what_failed(stage: StageRow) -> str:
    failed = stage.failed + stage.dead_lettered
    if failed or not stage.partly:
        return f"{failed} of {stage.total} tasks failed"
    return f"{stage.partly} of {stage.total} tasks succeeded in part"


def collected_result(locked: LockedFlows, stage: StageRow) -> str | None:
    """The results of a stage's tasks, in order, as the result of the stage. None if they are too many or too large."""
    limits = locked.batch.limits
    if stage.collect == "none" or not stage.succeeded or stage.total > limits.collected:
        return None
    ((size,),) = locked.batch.tx.query("size_of_results", stage=stage.key)
    if size > limits.result_bytes:
        return None
    rows = locked.batch.tx.query("results_of_stage", stage=stage.key, after=0, limit=limits.collected)
    results = [row.result for row in rows if row.state == SUCCEEDED]
    text = (results[-1] or "null") if stage.collect == "one" else f"[{','.join(r or 'null' for r in results)}]"
    return text if len(text.encode()) <= limits.result_bytes else None
