"""The commands that only the engine itself gives: the janitor makes them when the time of a task has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onetray.config import Limits
from onetray.domain.checks import (
    FAR_US,
    choice,
    text,
    whole,
)
from onetray.domain.commands import INT32, Command, Control
from onetray.domain.machine import SYSTEM
from onetray.domain.task import DEAD_STAGES, REASON_CODES


@dataclass(slots=True, kw_only=True)
class SystemCommand(Control):
    """A command of the engine's own: the janitor makes these, nobody else may."""

    actor: ClassVar[str] = SYSTEM
    actor_name: str = "janitor"
    fence: int | None = None
    """The attempt that was meant: a later one is left alone."""

    def check(self, limits: Limits) -> None:
        Control.check(self, limits)
        if self.fence is not None:
            whole(self.fence, "fence", 1, INT32)


@dataclass(slots=True, kw_only=True)
class Expire(SystemCommand):
    """Take back a task whose lease has run out."""

    verb: ClassVar[str] = "expire"
    lease: int | None = None
    as_of: int | None = None
    """Expire as if it were this time already."""

    def check(self, limits: Limits) -> None:
        SystemCommand.check(self, limits)
        if self.lease is not None:
            whole(self.lease, "lease", 1, 2**63 - 1)
        if self.as_of is not None:
            whole(self.as_of, "as_of", 0, FAR_US)


@dataclass(slots=True, kw_only=True)
class TimeOut(SystemCommand):
    """End a task, or its attempt, whose time is up."""

    verb: ClassVar[str] = "time_out"
    limit: str = "deadline"

    def check(self, limits: Limits) -> None:
        SystemCommand.check(self, limits)
        choice(self.limit, "limit", ("deadline", "queue_ttl", "timeout"))


@dataclass(slots=True, kw_only=True)
class Promote(SystemCommand):
    """Make a queued task claimable whose time has come."""

    verb: ClassVar[str] = "promote"


@dataclass(slots=True, kw_only=True)
class EndCancel(SystemCommand):
    """Finish a soft cancel whose grace is over."""

    verb: ClassVar[str] = "end_cancel"


@dataclass(slots=True, kw_only=True)
class DeadLetterIt(SystemCommand):
    """Set a task aside that must not run."""

    verb: ClassVar[str] = "dead_letter"
    reason_code: str
    message: str = ""
    stage: str = "input"

    def check(self, limits: Limits) -> None:
        SystemCommand.check(self, limits)
        choice(self.reason_code, "reason_code", REASON_CODES)
        choice(self.stage, "stage", DEAD_STAGES)
        text(self.message, "message", limits.error_chars, least=0)


SYSTEM_VERBS: dict[str, type[Command]] = {c.verb: c for c in (Expire, TimeOut, Promote, EndCancel, DeadLetterIt)}
