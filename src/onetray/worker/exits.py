"""How a process has ended, in words."""

from __future__ import annotations

import signal


def how_it_ended(code: int) -> str:
    """What an exit code of subprocess means."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # Most real-time signals have no name.
        return f"killed by signal {-code}"
