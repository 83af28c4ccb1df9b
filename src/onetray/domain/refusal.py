"""The words of a refused command: which state the entity is in, and what cannot be done with it therefore."""

from __future__ import annotations

from onetray.domain.lifecycle import (
    ASSIGNED,
    CANCELLED,
    CREATED,
    DEAD_LETTERED,
    FAILED,
    PARTIAL,
    SKIPPED,
    SUCCEEDED,
    WAITING,
    WAITING_INPUT,
)

_STATES = {
    SUCCEEDED: "has succeeded already", PARTIAL: "has succeeded partly already", FAILED: "has failed already",
    CANCELLED: "has been cancelled already", SKIPPED: "has been skipped already",
    DEAD_LETTERED: "is a dead letter already", CREATED: "has not started yet", WAITING: "is waiting",
    WAITING_INPUT: "is waiting for input", ASSIGNED: "is assigned to a worker",
}  # fmt: skip
"""The other states are adjectives: a task "is running"."""
_PARTICIPLES = {
    "approve": "approved", "block": "paused", "cancel": "cancelled", "claim": "claimed", "delete": "deleted",
    "dead_letter": "dead-lettered", "expire": "expired", "fail": "reported as failed", "open": "opened",
    "pause": "paused", "redrive": "redriven", "reject": "rejected", "release": "released",
    "reschedule": "rescheduled", "resume": "resumed", "retry": "retried", "seal": "sealed",
    "set_priority": "given another priority", "skip": "skipped", "start": "reported as started",
    "succeed": "reported as succeeded", "time_out": "timed out", "wait": "made to wait for approval",
    "wait_for_input": "paused", "beat": "held any longer",
}  # fmt: skip

_ACTIVE = {"log": "write to its log", "progress": "report its progress", "checkpoint": "save a checkpoint"}


def refusal_text(entity: str, state: str, verb: str, *, is_ending: bool = False) -> str:
    """Why a verb is refused: "the task has succeeded already and cannot be cancelled"."""
    words = _STATES.get(state, f"is {state.replace('_', ' ')}")
    if _PARTICIPLES.get(verb) in words.split():
        return f"the {entity} {words.removesuffix(' already')} already"
    ending = ", is ending" if is_ending else ""
    return f"the {entity} {words}{ending} and cannot {_passive(verb)}"


def _passive(verb: str) -> str:
    """What a verb does with the entity. Other verbs than these say what the entity itself would do: "take tasks"."""
    return f"be {_PARTICIPLES[verb]}" if verb in _PARTICIPLES else _ACTIVE.get(verb, verb)
