"""Every command by its verb, and the one command that submits many tasks.

Owns how a verb and its fields become a command. Whoever imports VERBS from here has all of them.
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
    """Put a task into a queue for each payload: all of them in one transaction, or none. The answer is their ids."""

    like: Annotated[Submit, Spec(Submit, by_hand=True)]
    """All that they share; its payload is left aside."""
    payloads: Annotated[list[Any], Spec(list, by_hand=True)]
    bodies: list[str] = field(init=False, default_factory=list)

    @property
    def size(self) -> int:
        return len(self.payloads)

    def check(self, limits: Limits) -> None:
        like = self.like
        if not isinstance(like, Submit):
            raise InvalidInput("like must be a Submit", field="like")
        if like.idempotency_key is not None or like.unique_key is not None or like.labels:
            raise InvalidInput("a key or labels are for one task: submit it by itself", field="like")
        like.check(limits)
        listed(self.payloads, "payloads", 1, limits.batch)
        self.bodies = json_texts(self.payloads, "payload", limits.payload_bytes)


def command_of(verb: object, fields: dict[str, Any]) -> Command:
    """Make a command from its verb's name and its fields."""
    kind = VERBS.get(verb) if isinstance(verb, str) else None
    if kind is None:
        raise UnknownVerb(f"there is no verb {short_repr(verb)}; there are: {', '.join(VERBS)}", field="verb")
    try:
        return kind(**fields)
    except TypeError as e:
        raise InvalidInput(f"{verb}: {e}".replace(f"{kind.__name__}.__init__() ", ""), field="fields") from None


def check_command(found: object, limits: Any) -> None:
    if not isinstance(found, Command) or not found.verb:
        raise UnknownVerb(f"{type(found).__name__} is no command", field="verb")
    found.check(limits)


def sendable_verbs() -> dict[str, type[Command]]:
    """The commands that may come from elsewhere. The engine's own are not among them."""
    return {verb: kind for verb, kind in VERBS.items() if kind.declared.scope is not None}


def sendable(verb: object) -> type[Command]:
    """The command of a verb that may come from elsewhere."""
    kind = VERBS.get(verb) if isinstance(verb, str) else None
    if kind is None or kind.declared.scope is None:
        known = ", ".join(sendable_verbs())
        raise UnknownVerb(f"there is no verb {short_repr(verb)}; there are: {known}", field="verb")
    return kind
