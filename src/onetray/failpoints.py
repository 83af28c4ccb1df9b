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

hook: Callable[[str], None] | None = None


def hit(point: str) -> None:
    if hook is not None:
        hook(point)
