"""The question of a task that waits for input: the form of its answer, and the notes of who asked.

Both are in the task's checkpoint. Who answers sends them through here, so that there is one check.
"""

from __future__ import annotations

from typing import Any

from onetray.domain.json_schema import check_value

NOTES, FORM = "notes", "form"


def left_behind(checkpoint: Any) -> dict[str, Any]:
    """The notes and the form in a checkpoint, if it has nothing else."""
    return checkpoint if isinstance(checkpoint, dict) and checkpoint.keys() <= {NOTES, FORM} else {}


def answer_schema(checkpoint: Any) -> dict[str, Any] | None:
    """The JSON Schema of the answer; None if any answer is accepted."""
    form = left_behind(checkpoint).get(FORM)
    return form if isinstance(form, dict) else None


def check_answer(checkpoint: Any, answer: Any, field: str = "answer") -> None:
    """Raises InvalidInput if the answer does not satisfy the form."""
    form = answer_schema(checkpoint)
    if form is not None:
        check_value(form, answer, field, "form")
