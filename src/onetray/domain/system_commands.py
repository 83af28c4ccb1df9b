"""The commands that only the engine itself gives: the janitor makes them when the time of a task has come.

They need no scope, because nobody can send them: whatever a token allows, a server does not know these verbs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from onetray.domain.commands import Control
from onetray.domain.declare import command
from onetray.domain.fields import INT64, ActorName, Choice, Fence, Text, Time, Whole
from onetray.domain.machine import SYSTEM
from onetray.domain.task import DEAD_STAGES, REASON_CODES


@dataclass(slots=True, kw_only=True)
class SystemCommand(Control):
    """A command of the engine's own: the janitor makes these, nobody else may."""

    actor: ClassVar[str] = SYSTEM
    actor_name: ActorName = "janitor"
    fence: Fence | None = None
    """The attempt that was meant: a later one is left alone."""


@command("expire", scope=None)
class Expire(SystemCommand):
    """Take back a task whose lease has run out."""

    lease: Annotated[int, Whole(1, INT64)] | None = None
    as_of: Time | None = None
    """Expire as if it were this time already."""


@command("time_out", scope=None)
class TimeOut(SystemCommand):
    """End a task, or its attempt, whose time is up."""

    limit: Annotated[str, Choice(("deadline", "queue_ttl", "timeout"))] = "deadline"


@command("promote", scope=None)
class Promote(SystemCommand):
    """Make a queued task claimable whose time has come."""


@command("end_cancel", scope=None)
class EndCancel(SystemCommand):
    """Finish a soft cancel whose grace is over."""


@command("dead_letter", scope=None)
class DeadLetterIt(SystemCommand):
    """Set a task aside that must not run."""

    reason_code: Annotated[str, Choice(REASON_CODES)]
    message: Annotated[str, Text("error_chars", least=0)] = ""
    stage: Annotated[str, Choice(DEAD_STAGES)] = "input"
