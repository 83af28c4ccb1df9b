"""Explain how a task, a stage or a flow has ended, and what can be done next.

Reads only. The caller says what the engine would refuse to run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onetray.domain.errors import error_line
from onetray.domain.flow import FlowError, decisive_error
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, PARTIAL, SKIPPED, SUCCEEDED, TASK
from onetray.domain.task import Blocker, json_of
from onetray.store.base import Store
from onetray.store.explain_rows import FlowFacts, StageFacts, TaskFacts

IsRefused = Callable[[str, int], bool]
"""Whether the engine would refuse to run an ended entity again, by its type and its key."""
CARRIED_OVER = (TASK.carry_over.event, TASK.carry_over_failed.event, TASK.carry_over_dead.event)


def ended_task(f: TaskFacts, is_refused: IsRefused) -> Blocker:
    """How a task has ended: with which error, by whom, and how to run it again."""
    error = json_of(f.error)
    facts: dict[str, Any] = {"finished_at": f.finished_at, "attempts": f.attempts, "max_attempts": f.max_attempts}
    if error is not None:
        facts["error"] = error
    message = _task_message(f, error)
    if f.last_event in CARRIED_OVER:
        message += "; it was carried over from an earlier flow"
    if f.successor is not None:
        facts["successor"] = f.successor
        return Blocker(f.state, f"{message}; it was redriven as {f.successor}", facts=facts)
    if is_refused(TASK.entity, f.key):
        where = (
            f"retry its flow: `onetray jobs retry {f.flow}`" if f.flow_state in FLOW.terminal else "its flow goes on"
        )
        return Blocker(f.state, f"{message}; it cannot run again alone: {where}", facts=facts)
    verb = "dead redrive" if f.state == DEAD_LETTERED else "jobs retry"
    facts["command"] = f"onetray {verb} {f.id}"
    return Blocker(f.state, f"{message}; to run it again: `{facts['command']}`", facts=facts)


def _task_message(f: TaskFacts, error: Any) -> str:
    attempt = f"attempt {f.attempts} of {f.max_attempts}"
    if f.state == CANCELLED:
        return f"the task was cancelled by {f.last_actor}" + (f": {f.last_cause}" if f.last_cause else "")
    if f.state == FAILED:
        return f"the task has failed ({attempt}): {error_line(error)}"
    if f.state == DEAD_LETTERED:
        return f"the task is a dead letter ({f.reason_code}, {attempt}): {error_line(error)}"
    return f"the task has ended: {f.state}"


def ended_stage(store: Store, s: StageFacts) -> Blocker:
    facts: dict[str, Any] = {"finished_at": s.finished_at, "stage": s.name, "flow": s.flow}
    error = _stage_error(store, s) if s.state in (FAILED, PARTIAL) else None
    message = f"stage {s.name!r} has ended: {s.state}"
    if error is not None:
        message, facts = _with_error(store, message, error, s.namespace, facts)
    elif s.state in (CANCELLED, SKIPPED, FAILED) and s.ending_why:
        message += f": {s.ending_why}"
    if s.state != SUCCEEDED and s.flow_state in FLOW.terminal:
        facts["command"] = f"onetray jobs retry {s.flow}"
        message += f"; to run its flow again: `{facts['command']}`"
    return Blocker(s.state, message, facts=facts)


def _stage_error(store: Store, s: StageFacts) -> FlowError | None:
    return next((r.all_errors[0] for r in store.read("failed_stages", job=s.job) if r.key == s.key), None)


def ended_flow(store: Store, f: FlowFacts, is_refused: IsRefused) -> Blocker:
    """How a flow has ended: which task of which stage failed with which error, and how to run it again."""
    facts: dict[str, Any] = {"finished_at": f.finished_at}
    message = f"the flow has ended: {f.state}"
    error = decisive_error(store.read("failed_stages", job=f.key)) if f.state in (FAILED, PARTIAL) else None
    if error is not None and f.ending_why is None:
        message, facts = _with_error(store, message, error, f.namespace, facts)
    elif f.state == FAILED:
        message += f": {f.ending_why or error_line(json_of(f.error))}"
    elif f.state == CANCELLED and f.ending_why:
        message += f": {f.ending_why}"
    if is_refused(FLOW.entity, f.key):
        return Blocker(f.state, f"{message}; it cannot run again now", facts=facts)
    facts["command"] = f"onetray jobs retry {f.id}"
    again = (
        "to run it again" if f.state in (SUCCEEDED, PARTIAL) else "to run it again from the stage that did not end well"
    )
    return Blocker(f.state, f"{message}; {again}: `{facts['command']}`", facts=facts)


def _with_error(
    store: Store, message: str, error: FlowError, namespace: str, facts: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Name the task that failed, with its whole error: the stage keeps only the beginning of a long one."""
    if error.task is None:
        return f"{message}: stage {error.stage!r}: {error.message}", {**facts, "stage": error.stage}
    text, whole = error.message, None
    for _, stored in store.read("error_of_task", id=error.task, namespace=namespace):
        whole = json_of(stored)
        text = error_line(whole) if whole is not None else text
    task = f"task {error.name or error.task} of stage {error.stage!r}"
    return f"{message}: {task}: {text}", {**facts, "stage": error.stage, "task": error.task, "error": whole}
