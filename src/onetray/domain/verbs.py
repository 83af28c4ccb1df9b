"""Every command by its verb, and the command that submits many tasks.

Owns the creation of a command from a verb and fields. Import VERBS from here: then all commands are registered.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from onetray.config import Limits
from onetray.domain import flow_commands, system_commands  # noqa: F401 (they declare their commands)
from onetray.domain.checks import json_texts, listed
from onetray.domain.commands import Submit
from onetray.domain.declare import VERBS as VERBS
from onetray.domain.declare import Command, command
from onetray.domain.errors import InvalidInput, UnknownVerb, short_repr
from onetray.domain.fields import Spec


@command("submit_many", scope=None, summary="Submit many tasks at once", answer=list[str], answer_name="ids")
class SubmitMany(Command):
    """Submit a task for each payload, all in one transaction. The answer is their ids."""

    like: Annotated[Submit, Spec(Submit, by_hand=True)]
    """The fields that they share; its payload is ignored."""
    payloads: Annotated[list[Any], Spec(list, by_hand=True)]
    bodies: list[str] = field(init=False, default_factory=list)

    @property
    def size(self) -> int:
        return len(self.payloads)

    def check(self, limits: Limits) -> None:
        like = self.like
        if not isinstance(like, Submit):
            raise InvalidInput("like must be a Submit", field="like")
        if like.idempotency_key is not None or like.unique_key is not None or like.labels or like.alias is not None:
            raise InvalidInput("keys, an alias and labels apply to a single task: use submit for it", field="like")
        if like.has_window:
            raise InvalidInput("debounce_s and throttle_s apply to a single task: use submit for it", field="like")
        like.check(limits)
        listed(self.payloads, "payloads", 1, limits.batch)
        self.bodies = json_texts(self.payloads, "payload", limits.payload_bytes)


def command_of(verb: object, fields: dict[str, Any]) -> Command:
    """Create a command from its verb and its fields."""
    kind = VERBS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise UnknownVerb(f"unknown verb {short_repr(verb)}; known verbs: {', '.join(VERBS)}", field="verb")
    try:
        return kind(**fields)
    except TypeError as e:
        raise InvalidInput(f"{verb}: {e}".replace(f"{kind.__name__}.__init__() ", ""), field="fields") from None


def check_command(value: object, limits: Any) -> None:
    if not isinstance(value, Command) or not value.verb:
        raise UnknownVerb(f"{type(value).__name__} is not a command", field="verb")
    value.check(limits)


def sendable_verbs() -> dict[str, type[Command]]:
    """The commands that a client can send, without those of the engine itself."""
    return {verb: kind for verb, kind in VERBS.items() if kind.declared.scope is not None}


def sendable(verb: object) -> type[Command]:
    """The class of a command that a client can send. Raises UnknownVerb."""
    kind = VERBS.get(verb) if isinstance(verb, str) else None
    if kind is None or kind.declared.scope is None:
        known = ", ".join(sendable_verbs())
        raise UnknownVerb(f"unknown verb {short_repr(verb)}; known verbs: {known}", field="verb")
    return kind
