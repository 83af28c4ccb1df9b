"""The errors of a stage's tasks, on the stage: how many, and the first of them with their messages.

Owns which errors are kept and what of them. They are written in the transaction in which the task ends. A batch without
errors costs nothing.
"""

from __future__ import annotations

from typing import Any

import orjson

from onetray.domain.flow import message_of_error
from onetray.store.base import Tx
from onetray.store.rows import TaskRow

KEPT = 20
"""How many errors of a stage are kept with it. All of them are with its tasks."""
MESSAGE_CHARS = 1_000
"""Of a longer message the beginning is kept."""


class StageErrors:
    """The errors of one transaction that are not written yet. The flows of their stages are locked."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._new: dict[int, list[tuple[int, str]]] = {}

    def add(self, row: TaskRow, messages: list[str], known: int) -> None:
        """Keep the errors of a task, unless enough are known of its stage."""
        assert row.stage is not None
        if known < KEPT:
            self._new.setdefault(row.stage, []).extend((row.key, message) for message in messages[: KEPT - known])

    def write(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, {}
        keys = sorted({task for errors in new.values() for task, _ in errors})
        tasks = {row.key: row for row in self._tx.query("names_of_tasks", keys=keys)}
        kept = self._kept(sorted(new))
        for stage, errors in new.items():
            kept[stage] += [_entry(tasks[task].id, tasks[task].name, message) for task, message in errors]
        self._save({stage: errors[:KEPT] for stage, errors in kept.items()})

    def drop(self, row: TaskRow) -> None:
        """Forget the error of a task that is redriven: its successor takes its place in the stage."""
        assert row.stage is not None
        self.write()
        (task,) = self._tx.query("names_of_tasks", keys=[row.key])
        kept = self._kept([row.stage])
        self._save({stage: [e for e in errors if e["task"] != task.id] for stage, errors in kept.items()})

    def _kept(self, stages: list[int]) -> dict[int, list[dict[str, Any]]]:
        rows = self._tx.query("errors_of_stages", keys=stages)
        return {key: orjson.loads(errors) if errors else [] for key, errors in rows}

    def _save(self, kept: dict[int, list[dict[str, Any]]]) -> None:
        texts = [orjson.dumps(errors).decode() if errors else None for errors in kept.values()]
        self._tx.batch("set_errors", {"key": list(kept), "errors": texts})


def _entry(task: str, name: str | None, message: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"task": task, "name": name, "message": message[:MESSAGE_CHARS]}
    return {**entry, "cut": True} if len(message) > MESSAGE_CHARS else entry


def messages_of_failure(error_json: str | None) -> list[str]:
    return [message_of_error(orjson.loads(error_json)) if error_json else "it failed"]


def messages_of_partial(errors: Any) -> list[str]:
    """The errors that a partial success reported: a list of texts or of objects with a message, or anything else."""
    if errors is None or errors == []:
        return ["it succeeded in part"]
    return [_message(error) for error in (errors if isinstance(errors, list | tuple) else [errors])]


def _message(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else orjson.dumps(error, default=str).decode()
