"""Named points in the code where a test may stop, delay or kill the process. Inert otherwise.

Owns no behaviour: `hit` does nothing until a test sets a hook.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = ("begun", "locked", "moving", "updated", "moved", "claimed", "committing", "committed")
FLOW_POINTS = ("flows_locked", "cascading", "settled")
"""Those that only what concerns a flow comes to."""

hook: Callable[[str], None] | None = None


def hit(point: str) -> None:
    if hook is not None:
        hook(point)
