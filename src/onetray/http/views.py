"""The engine's values as the API returns them.

Owns the fields that a response adds to a value or leaves out. Claimed tasks have their payload unredacted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from onetray.domain.commands import Claim, Command
from onetray.domain.flow import Flow, Placed, Stage
from onetray.domain.past import PastJob
from onetray.domain.task import Assignment, DeadLetter, Receipt, Task, Verdict, ticket_text
from onetray.http import problems
from onetray.http.json_answers import iso_time, to_json

LARGE = ("data", "metadata", "result", "metrics", "error", "errors", "approval", "answer")
"""Fields of a stage that may be large."""


def job(value: Task | Flow) -> dict[str, Any]:
    return {"entity": "task" if isinstance(value, Task) else "flow", **to_json(value)}


def past_job(past: PastJob) -> dict[str, Any]:
    """A job as it was: the same fields, and `past`."""
    more = {
        "event": past.event, "ts": iso_time(past.ts), "type": past.type, "stages": to_json(past.stages),
        "tasks": [job(task) for task in past.tasks], "cut": past.cut, "unknown": past.unknown,
    }  # fmt: skip
    return {**job(past.job), "past": more}


def placed_view(value: Receipt | Placed, id: str | None = None) -> dict[str, Any]:
    """The state after a command, and the allowed actions."""
    body: dict[str, Any] = {"entity": "task", **to_json(value)}
    if body["id"] is None:
        body["id"] = None if id is None else id.lower()
    return body


def stage_line(stage: Stage) -> dict[str, Any]:
    """A stage in a list: without its large fields."""
    return {name: value for name, value in to_json(stage).items() if name not in LARGE}


def assignment(a: Assignment) -> dict[str, Any]:
    """A claimed task. Payload and policy are the stored JSON, unparsed."""
    return {
        "id": a.id, "kind": a.kind, "queue": a.queue, "namespace": a.namespace, "worker": a.worker, "fence": a.fence,
        "attempt": a.attempt, "lease_id": a.lease_id, "lease_s": a.lease_s,
        "lease_expires_at": iso_time(a.lease_expires_at), "state": a.state,
        "payload": orjson.Fragment(a.payload_json),
        "input": None if a.input_json is None else orjson.Fragment(a.input_json),
        "idempotency_key": a.idempotency_key or a.id, "correlation_id": a.correlation_id, "trace": a.trace,
        "policy": orjson.Fragment(a.policy.body),
        "ticket": ticket_text(a), "actions": list(a.actions),
    }  # fmt: skip


def dead_letter_view(letter: DeadLetter, task: Task) -> dict[str, Any]:
    return {**to_json(letter), "kind": task.kind, "payload": task.payload}


def answer_view(kind: type[Command], value: Any, id: str | None = None) -> dict[str, Any]:
    """The answer to a command about the task, stage or flow `id`."""
    if isinstance(value, Receipt | Placed):
        return placed_view(value, id)
    if kind is Claim:
        value = [assignment(a) for a in value]
    return {kind.declared.answer_name: value} if kind.declared.answer_name else dict(to_json(value))


def verdict(v: Verdict, view: Callable[[Any], Any]) -> dict[str, Any]:
    """A verdict of a batch: the value or the problem."""
    return {"value": view(v.value)} if v.error is None else {"error": problems.of_error(v.error)}
