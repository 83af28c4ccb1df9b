"""The commands of the engine itself: the janitor runs them when a task is due.

They have no scope: no client can send them, whatever its token allows.
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
    """A command that only the janitor runs."""

    actor: ClassVar[str] = SYSTEM
    actor_name: ActorName = "janitor"
    fence: Fence | None = None
    """The attempt that it applies to: it does not affect a later one."""


@command("expire", scope=None)
class Expire(SystemCommand):
    """Return a task with an expired lease to its queue."""

    lease: Annotated[int, Whole(1, INT64)] | None = None
    as_of: Time | None = None
    """The time to compare the lease's expiry with."""


@command("time_out", scope=None)
class TimeOut(SystemCommand):
    """End a task, or an attempt, that has reached its time limit."""

    limit: Annotated[str, Choice(("deadline", "queue_ttl", "timeout"))] = "deadline"


@command("promote", scope=None)
class Promote(SystemCommand):
    """Make a queued task that is due claimable."""


@command("end_cancel", scope=None)
class EndCancel(SystemCommand):
    """Finish a soft cancel whose grace period is over."""


@command("dead_letter", scope=None)
class DeadLetterIt(SystemCommand):
    """Dead-letter a task that must not run."""

    reason_code: Annotated[str, Choice(REASON_CODES)]
    message: Annotated[str, Text("error_chars", least=0)] = ""
    stage: Annotated[str, Choice(DEAD_STAGES)] = "input"
