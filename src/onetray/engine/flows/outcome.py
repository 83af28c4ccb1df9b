"""How the end of a stage is told: by whom, why, by which decision, and with what result.

Owns what the event and the row say. That it ends, and how, is decided in advance.py.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.domain.lifecycle import CANCELLED, CREATED, FAILED, PARTIAL, SKIPPED, STAGE, SUCCEEDED, WAITING
from onetray.domain.machine import Transition
from onetray.engine.flows.locked import LastWords, LockedFlows
from onetray.engine.pending_writes import ENGINE, event_detail
from onetray.store.rows import FlowRow, StageRow

_ENDS = {
    SUCCEEDED: STAGE.succeed,
    PARTIAL: STAGE.end_partly,
    FAILED: STAGE.fail,
    CANCELLED: STAGE.cancel,
    SKIPPED: STAGE.skip,
}
_ANSWERS = {"rejected": STAGE.reject, "skipped": STAGE.skip}
_WITH_RESULT = (STAGE.succeed, STAGE.end_partly, STAGE.fail, STAGE.cancel)


def last_words(locked: LockedFlows, stage: StageRow, outcome: str) -> LastWords:
    """How a stage's end is told. Somebody may have said it in an earlier step: their answer is kept."""
    words = locked.last_words.pop(stage.key, None)
    if words is None and stage.state in (CREATED, WAITING) and outcome in (FAILED, SKIPPED) and stage.total:
        (specs,) = locked.batch.tx.query("specs_of_stage", key=stage.key)
        answer = orjson.loads(specs.answer) if specs.answer else {}
        if answer.get("verdict") in _ANSWERS:
            why = answer.get("cause") or answer["note"]
            words = _ANSWERS[answer["verdict"]], answer["by"], why, answer.get("trace")
    if words is not None and words[0].target == outcome:
        return words
    flow = locked.flows[stage.job]
    by = flow.ending_by if outcome == flow.ending == CANCELLED else None
    return _ENDS[outcome], by or ENGINE, None, None


def decision(flow: FlowRow, stage: StageRow, outcome: str, why: str | None) -> str:
    """The policy's decision, as the event tells it."""
    return event_detail(
        policy=flow.roll_up, on_failure=stage.on_failure, outcome=outcome, total=stage.total, open=stage.open,
        succeeded=stage.succeeded, partly=stage.partly, failed=stage.failed, dead_lettered=stage.dead_lettered,
        cancelled=stage.cancelled, redriven=stage.redriven, why=why,
    )  # fmt: skip


def facts_of_end(locked: LockedFlows, stage: StageRow, transition: Transition) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if transition in _WITH_RESULT:
        columns["result"] = collected(locked, stage)
    if transition in (STAGE.fail, STAGE.reject):
        message = stage.ending_why or f"{stage.failed + stage.dead_lettered} of {stage.total} tasks failed"
        columns["error"] = event_detail(stage=stage.name, message=message)
    return columns


def collected(locked: LockedFlows, stage: StageRow) -> str | None:
    """A stage's own result: its tasks' results, in their order. None when there are too many, or they are too large."""
    limits = locked.batch.limits
    if stage.collect == "none" or not stage.succeeded or stage.total > limits.collected:
        return None
    ((size,),) = locked.batch.tx.query("size_of_results", stage=stage.key)
    if size > limits.result_bytes:
        return None
    rows = locked.batch.tx.query("results_of_stage", stage=stage.key, after=0, limit=limits.collected)
    found = [row.result for row in rows if row.state == SUCCEEDED]
    text = (found[-1] or "null") if stage.collect == "one" else f"[{','.join(r or 'null' for r in found)}]"
    return text if len(text.encode()) <= limits.result_bytes else None
