"""One command for many tasks that differ in their payloads alone.

Owns what they may share. Nothing is made for each task but its payload's text, so that thousands cost little; whatever
is said of single tasks (keys, labels) needs a command for each: see commands.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from onetray.commands import Command, Submit
from onetray.config import Limits
from onetray.errors import InvalidInput
from onetray.fields import json_texts, listed


@dataclass(slots=True, kw_only=True)
class SubmitMany(Command):
    """Put a task into a queue for each payload: all of them in one transaction, or none. The answer is their ids."""

    verb: ClassVar[str] = "submit_many"
    like: Submit
    """All that they share; its payload is left aside."""
    payloads: list[Any]
    bodies: list[str] = field(default_factory=list)

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
