"""The values of the fleet: workers as they describe themselves, breakers as they stand.

Owns their shape, and the checks of what a worker says about itself. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from onetray.config import Limits
from onetray.domain.checks import choice, listed, seconds, text, whole
from onetray.domain.errors import InvalidInput

AT_WORK, STOPPING = "running", "stopping"
WORKER_STATES = (AT_WORK, STOPPING)
CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
    """What a worker says about itself, again and again."""

    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...] = ("default",)
    kinds: tuple[str, ...] = ()
    """The kinds that it takes; none means every kind."""
    concurrency: int = 1
    running: int = 0
    claimed: int = 0
    """The tasks that it holds, running or not."""
    state: str = AT_WORK
    ttl_s: float = 30.0
    """It counts as alive for so long after this."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it last described itself."""

    name: str
    host: str
    pid: int
    version: str
    started_at: int
    beat_at: int
    expires_at: int
    concurrency: int
    running: int
    claimed: int
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    state: str
    alive: bool


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of a kind: open, half open (one task is let through to try), or closed."""

    kind: str
    state: str
    failures: int
    """How many of its last failures lie within the window of the kind's policy."""
    opened_at: int | None
    open_until: int | None
    """Until then nothing of the kind is claimed."""
    why: str | None
    opened_by: str | None


def check_beat(beat: WorkerBeat, limits: Limits) -> None:
    if not isinstance(beat, WorkerBeat):
        raise InvalidInput(f"beat must be a WorkerBeat, not {type(beat).__name__}", field="beat")
    for field in ("name", "host", "version"):
        text(getattr(beat, field), field, limits.name_chars)
    for field in ("pid", "concurrency", "running", "claimed"):
        whole(getattr(beat, field), field, 0, _INT32)
    for field in ("queues", "kinds"):
        for name in listed(getattr(beat, field), field, 0, 1_000):
            text(name, field, limits.name_chars)
    choice(beat.state, "state", WORKER_STATES)
    seconds(beat.ttl_s, "ttl_s", 0.001)


def breaker_state(open_until: int | None, probing: int, now: int) -> str:
    """What a breaker's row means at a time. While a probe is out, or may be, it is half open."""
    if open_until is None:
        return CLOSED
    return OPEN if not probing and now < open_until else HALF_OPEN
