"""Every command by its verb, and the one command that submits many tasks.

Owns how a verb and its fields become a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from onetray.config import Limits
from onetray.domain import commands as c
from onetray.domain.checks import (
    json_texts,
    listed,
)
from onetray.domain.errors import (
    InvalidInput,
    UnknownVerb,
    short_repr,
)
from onetray.domain.flow_commands import FLOW_VERBS
from onetray.domain.system_commands import SYSTEM_VERBS

TASK_VERBS: dict[str, type[c.Command]] = {
    command.verb: command
    for command in (
        c.Submit, c.Claim, c.Start, c.Beat, c.Succeed, c.Fail, c.Release, c.Pause, c.Log, c.Progress, c.Checkpoint,
        c.Resume, c.Cancel, c.Redrive, c.SetPriority, c.Reschedule,
    )
}  # fmt: skip
VERBS = {**TASK_VERBS, **SYSTEM_VERBS, **FLOW_VERBS}


def command_of(verb: object, fields: dict[str, Any]) -> c.Command:
    """Make a command from its verb's name and its fields."""
    kind = VERBS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise UnknownVerb(f"there is no verb {short_repr(verb)}; there are: {', '.join(VERBS)}", field="verb")
    try:
        return kind(**fields)
    except TypeError as e:
        raise InvalidInput(f"{verb}: {e}".replace(f"{kind.__name__}.__init__() ", ""), field="fields") from None


def check_command(command: object, limits: Any) -> None:
    if not isinstance(command, c.Command) or not command.verb:
        raise UnknownVerb(f"{type(command).__name__} is no command", field="verb")
    command.check(limits)


@dataclass(slots=True, kw_only=True)
class SubmitMany(c.Command):
    """Put a task into a queue for each payload: all of them in one transaction, or none. The answer is their ids."""

    verb: ClassVar[str] = "submit_many"
    like: c.Submit
    """All that they share; its payload is left aside."""
    payloads: list[Any]
    bodies: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.payloads)

    def check(self, limits: Limits) -> None:
        like = self.like
        if not isinstance(like, c.Submit):
            raise InvalidInput("like must be a Submit", field="like")
        if like.idempotency_key is not None or like.unique_key is not None or like.labels:
            raise InvalidInput("a key or labels are for one task: submit it by itself", field="like")
        like.check(limits)
        listed(self.payloads, "payloads", 1, limits.batch)
        self.bodies = json_texts(self.payloads, "payload", limits.payload_bytes)
