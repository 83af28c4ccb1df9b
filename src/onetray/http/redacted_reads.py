"""What a reader is shown of the answer to a read: what a kind has asked to be redacted is hidden.

Owns which reads may tell a secret, and whose it would be. Workers get the real values, as their claims do, unless they
ask for what others are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from onetray.engine import Engine
from onetray.remote.reads import READS

ITSELF = frozenset({
    "context", "contexts", "dead_groups", "dead_letters", "dead_lines", "events", "events_by_correlation", "flow",
    "flow_events", "flows", "members", "progress", "stage", "stage_tasks", "stages", "task", "tasks",
})  # fmt: skip
"""Reads whose values say whose they are."""
OF_TASK = frozenset({"explain", "logs", "progress_of"})
"""Reads whose values do not: they are of the task that was asked for."""
JSON_OF_TASK = frozenset({"inputs", "last_checkpoint"})
RESULTS_OF_STAGE = frozenset({"stage_results"})
PLAIN = frozenset({
    "breakers", "held", "job_key", "jobs", "locate", "now", "policy_of", "position", "queues", "workers",
})  # fmt: skip
"""Reads that tell nothing that a payload could hold."""

if set(READS) != ITSELF | OF_TASK | JSON_OF_TASK | RESULTS_OF_STAGE | PLAIN:
    raise RuntimeError("every read says what it may tell: name it in one of the sets above")


def veiled(engine: Engine, name: str, given: dict[str, Any], value: Any) -> Any:
    """The value of a read as others are shown it."""
    if value is None or name in PLAIN:
        return value
    if name in ITSELF:
        return engine.veiled(value)
    if name in OF_TASK:
        return engine.veiled(value, given["task"].lower())
    if name in JSON_OF_TASK:
        return engine.veiled_json(value, given["task"].lower())
    results = engine.veiled_each([row[4] for row in value], given["stage"].lower())
    return [(*row[:4], result) for row, result in zip(value, results, strict=True)]


T = TypeVar("T")


def redacted(engine: Engine, value: T, of: str | Sequence[str] | None = None) -> T:
    """A value, or a list of values, as others may see it. `of`: whose it is, or each is, where it does not say so
    itself.

    It may ask the database: call it in a thread.
    """
    return engine.veiled(value, of)
