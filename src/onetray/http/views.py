"""What is shown of the engine's values: the one place between them and the answers.

Owns which fields an answer has besides the value's own. Whoever claims a task sees its payload as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from onetray.domain.commands import Claim, Command
from onetray.domain.flow import Flow, Placed, Stage
from onetray.domain.task import Assignment, DeadLetter, Receipt, Task, Verdict, ticket_text
from onetray.http import problems
from onetray.http.json_answers import iso_time, to_json

LARGE = ("data", "metadata", "result", "metrics", "error", "approval", "answer")
"""What a stage may have much of."""


def job(value: Task | Flow) -> dict[str, Any]:
    """A task or a flow, and which of the two it is."""
    return {"entity": "task" if isinstance(value, Task) else "flow", **to_json(value)}


def placed_view(value: Receipt | Placed, id: str | None = None) -> dict[str, Any]:
    """Where something stands after a command, and what may be done next."""
    view: dict[str, Any] = {"entity": "task", **to_json(value)}
    if view["id"] is None:
        view["id"] = None if id is None else id.lower()
    return view


def stage_line(stage: Stage) -> dict[str, Any]:
    """A stage as a line of a list: without what may be large."""
    return {name: value for name, value in to_json(stage).items() if name not in LARGE}


def assignment(a: Assignment) -> dict[str, Any]:
    """A claimed task. Payload and policy are the texts that were stored: nothing is read and written again."""
    return {
        "id": a.id, "kind": a.kind, "queue": a.queue, "namespace": a.namespace, "worker": a.worker, "fence": a.fence,
        "attempt": a.attempt, "lease_s": a.lease_s, "lease_expires_at": iso_time(a.lease_expires_at), "state": a.state,
        "payload": orjson.Fragment(a.payload_json),
        "input": None if a.input_json is None else orjson.Fragment(a.input_json),
        "correlation_id": a.correlation_id, "trace": a.trace, "policy": orjson.Fragment(a.policy.body),
        "ticket": ticket_text(a), "actions": list(a.actions),
    }  # fmt: skip


def dead_letter_view(letter: DeadLetter, task: Task) -> dict[str, Any]:
    """All that is known of why a task was set aside."""
    return {**to_json(letter), "kind": task.kind, "payload": task.payload}


def answer_view(kind: type[Command], value: Any, id: str | None = None) -> dict[str, Any]:
    """What a command is answered with. `id` is what it was about."""
    if isinstance(value, Receipt | Placed):
        return placed_view(value, id)
    if kind is Claim:
        value = [assignment(a) for a in value]
    return {kind.declared.answer_name: value} if kind.declared.answer_name else dict(to_json(value))


def verdict(found: Verdict, show: Callable[[Any], Any]) -> dict[str, Any]:
    """One of many answers: a value, or the problem that refused it."""
    return {"value": show(found.value)} if found.error is None else {"error": problems.of_error(found.error)}
