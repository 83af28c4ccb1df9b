"""Named points in the code where a test can stop, delay or kill the process.

`hit` does nothing unless a test has set `hook`.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = ("begun", "locked", "moving", "updated", "moved", "claimed", "committing", "committed")
FLOW_POINTS = ("flows_locked", "cascading", "settled")
"""Points that only transactions with flows reach."""

COUNT_POINTS = ("counting", "counted")
"""Points that only a transaction of the statistics reaches."""

SCHEDULE_POINTS = ("schedule_locked", "schedule_fired")
"""Points that only the fire of a schedule reaches."""

LIMIT_POINTS = ("lanes_shared", "lanes_locked", "slots_locked", "slots_taken", "limit_added", "limit_committed")
"""Points that only transactions with limits or lanes reach."""

hook: Callable[[str], None] | None = None


def hit(point: str) -> None:
    if hook is not None:
        hook(point)
