"""Runs, tasks, attempts, leases, snapshots and events as parallel-mcp's clients get them.

Owns which id is shown: the one that its author chose. Every run and task of these tools has one (an alias), so that
the id of a dead task, and of its run, stays the same when the task is requeued. The id of a run is also the correlation
id of all that belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from onetray.domain.flow import Context, Flow, message_of_error
from onetray.domain.lifecycle import ASSIGNED, CREATED, DEAD_LETTERED, FLOW, HELD, QUEUED, RUNNING, TASK
from onetray.domain.task import Event, Task, value_of
from onetray.engine.api import EngineApi
from onetray.http.json_answers import iso_time
from onetray.mcp.jobs import time_or_none
from onetray.mcp.parallel.arguments import MAX_ATTEMPTS, MAX_MS
from onetray.mcp.parallel.words import (
    EVENT_NAMES,
    PAUSED,
    REQUEUED,
    RUN_STATES,
    STATUS_CHANGED,
    TASK_STATES,
)

Record = dict[str, Any]
NAMESPACE, EXTERNAL_ID = "namespace", "externalId"
"""Labels of a flow that is a run."""
REQUEUE = "requeue_dead_task"
"""Begins the cause of everything that a requeue submits. The id of the task follows."""
CARRIED_OVER = "carried over"
EXHAUSTED = "max_attempts_exceeded"


def run_records(engine: EngineApi, namespace: str, flows: Sequence[Flow]) -> list[Record]:
    shown = names_of(engine, namespace, (flow.context_id for flow in flows))
    return [_run(flow, shown.get(flow.context_id or "", flow.context_id)) for flow in flows]


def _run(flow: Flow, context_id: str | None) -> Record:
    return {
        "id": flow.alias or flow.id, "namespace": flow.labels.get(NAMESPACE),
        "externalId": flow.labels.get(EXTERNAL_ID), "status": RUN_STATES.show(flow, flow.ending),
        "metadata": flow.metadata, "currentContextSnapshotId": context_id, "createdAt": iso_time(flow.created_at),
        "updatedAt": iso_time(flow.updated_at),
    }  # fmt: skip


def task_records(engine: EngineApi, namespace: str, tasks: Sequence[Task]) -> list[Record]:
    """Costs two statements, or one if no task has a context."""
    needs: dict[str, list[str]] = {}
    for each in engine.dependencies([task.id for task in tasks], namespace=namespace) if tasks else ():
        needs.setdefault(each.task_id, []).append(each.needs_alias or each.needs_id)
    shown = names_of(engine, namespace, (task.context_id for task in tasks))
    return [_task(task, needs.get(task.id, []), shown.get(task.context_id or "", task.context_id)) for task in tasks]


def _task(task: Task, needs: list[str], context_id: str | None) -> Record:
    policy, is_dead = task.policy, task.state == DEAD_LETTERED
    delays = task.state == QUEUED and task.run_at > task.updated_at
    return {
        "id": task.alias or task.id, "runId": task.correlation_id, "key": task.name, "kind": task.kind,
        "status": TASK_STATES.state(task.state), "priority": task.priority,
        "maxAttempts": None if task.max_attempts == MAX_ATTEMPTS else task.max_attempts,
        "attemptCount": task.attempts, "retryDelayMs": _ms(policy.backoff_base_s),
        "retryBackoff": ("fixed" if policy.backoff_factor == 1 else "exponential") if policy.backoff_base_s else None,
        "retryMaxDelayMs": None if _ms(policy.backoff_max_s) == MAX_MS else _ms(policy.backoff_max_s),
        "timeoutMs": _ms(policy.timeout_s), "notBefore": iso_time(task.run_at) if delays else None,
        "input": task.payload, "output": task.result, "metadata": task.metadata,
        "error": None if task.error is None else EXHAUSTED if is_dead else message_of_error(task.error),
        "dead": is_dead, "contextSnapshotId": context_id, "leaseId": task.lease_id, "leasedBy": task.owner,
        "leaseExpiresAt": time_or_none(task.lease_expires_at), "dependsOnTaskIds": needs,
        "createdAt": iso_time(task.created_at), "updatedAt": iso_time(task.updated_at),
        "startedAt": time_or_none(task.started_at), "completedAt": time_or_none(task.finished_at),
    }  # fmt: skip


def _ms(seconds: float | None) -> int | None:
    return round(seconds * 1000) if seconds else None


def claimed_at(engine: EngineApi, task: Task) -> int:
    """When a task was claimed that a worker holds."""
    if task.state == ASSIGNED:
        return task.updated_at
    events = engine.events(task.id, namespace=task.namespace)
    return max(event.ts for event in events if event.type == TASK.claim.event)


def attempt_record(task: Task, claimed: int) -> Record:
    return {
        "id": _attempt_id(task.id, task.fence), "runId": task.correlation_id,
        "taskId": task.alias or task.id, "workerId": task.owner, "status": TASK_STATES.state(task.state),
        "leasedAt": iso_time(claimed), "endedAt": None,
        "startedAt": time_or_none(task.started_at) if task.state == RUNNING else None,
        "leaseExpiresAt": time_or_none(task.lease_expires_at), "error": None, "output": None, "metadata": None,
    }  # fmt: skip


def lease_record(task: Task, claimed: int, renewed: int, token: str | None = None) -> Record:
    id_ = task.alias or task.id
    return {
        "id": task.lease_id, "runId": task.correlation_id, "taskId": id_, "attemptId": _attempt_id(task.id, task.fence),
        "workerId": task.owner, "status": "active", "acquiredAt": iso_time(claimed),
        "expiresAt": time_or_none(task.lease_expires_at), "heartbeatAt": iso_time(renewed), "releasedAt": None,
        "clientToken": token,
    }  # fmt: skip


def _attempt_id(task: str, fence: int) -> str:
    return f"{task}#{fence}"


def snapshot_record(engine: EngineApi, namespace: str, context: Context) -> Record:
    shown = names_of(engine, namespace, (context.flow_id, context.task_id, context.parent_id))
    return {
        "id": context.alias or context.id, "runId": shown.get(context.flow_id, context.flow_id),
        "taskId": shown.get(context.task_id or "", context.task_id), "scope": context.scope,
        "parentSnapshotId": shown.get(context.parent_id or "", context.parent_id), "label": context.label,
        "payload": context.payload, "createdAt": iso_time(context.created_at),
    }  # fmt: skip


def event_record(event: Event, names: dict[str, str]) -> Record | None:
    """An event; None for what its clients do not see: how a requeue copies the rest of an ended run."""
    type_ = EVENT_NAMES[event.type]
    is_of_task = event.type.startswith(f"{TASK.entity}.")
    task = names.get(event.entity_id, event.entity_id) if is_of_task else None
    cause = event.cause or ""
    if cause == CARRIED_OVER:
        return None
    if cause.startswith(f"{REQUEUE} ") and event.state in (CREATED, QUEUED):
        if not is_of_task or cause[len(REQUEUE) + 1 :].partition("\n")[0] != task:
            return None
        type_ = REQUEUED
    return {
        "id": event.id, "runId": event.correlation_id, "taskId": task,
        "attemptId": _attempt_id(event.entity_id, _attempt(event)) if is_of_task and _is_held(event) else None,
        "eventType": type_, "payload": _event_payload(event, type_, names), "createdAt": iso_time(event.ts),
    }  # fmt: skip


def _is_held(event: Event) -> bool:
    return event.was in HELD or event.state in HELD


def _attempt(event: Event) -> int:
    """The fence of the attempt that an event is about: what returns a task to its queue opens the next one."""
    return event.fence - 1 if event.state == QUEUED else event.fence


def _event_payload(event: Event, type_: str, names: dict[str, str]) -> Record:
    told = value_of(event.payload)
    told = told if isinstance(told, dict) else {}
    is_status = type_ == STATUS_CHANGED
    before = FLOW.fail.target if (event.cause or "").startswith(f"{REQUEUE} ") else event.was
    reason = (event.cause or "").partition("\n")[2] if (event.cause or "").startswith(REQUEUE) else event.cause
    payload = {
        "from": RUN_STATES.state(before) if is_status and before else None,
        "to": RUN_STATES.state(event.state) if is_status and event.state else None,
        "status": TASK_STATES.state(event.state) if type_ == PAUSED and event.state else None,
        "workerId": event.actor.removeprefix("worker:") if event.actor.startswith("worker:") else None,
        "error": message_of_error(told["error"]) if "error" in told else None, "reason": reason or None,
        "snapshotId": names.get(told.get("context", ""), told.get("context")), "scope": told.get("scope"),
        "label": told.get("label"),
    }  # fmt: skip
    return {name: value for name, value in payload.items() if value is not None}


def names_of(engine: EngineApi, namespace: str, ids: Iterable[str | None]) -> dict[str, str]:
    """The ids that are shown, by ours: of tasks, runs and snapshots whose authors chose one."""
    wanted = list(dict.fromkeys(id_ for id_ in ids if id_))
    return {each.id: each.alias for each in engine.aliases_of(wanted, namespace=namespace)} if wanted else {}
