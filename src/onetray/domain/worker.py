"""Public values about workers and breakers, and the checks of a worker's registration."""

from __future__ import annotations

from dataclasses import dataclass

from onetray.config import Limits
from onetray.domain.checks import choice, listed, seconds, text, whole
from onetray.domain.errors import InvalidInput

ACTIVE, STOPPING = "running", "stopping"
WORKER_STATES = (ACTIVE, STOPPING)
CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBeat:
    """A worker's registration, which it repeats with every heartbeat."""

    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...] = ("default",)
    kinds: tuple[str, ...] = ()
    """The kinds that it claims; empty means every kind."""
    concurrency: int = 1
    running: int = 0
    claimed: int = 0
    """The number of tasks that it holds, running or not."""
    state: str = ACTIVE
    ttl_s: float = 30.0
    """It counts as alive for this long after the registration."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it last registered."""

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
    """The breaker of a kind: closed, open, or half open (one task may be claimed as a probe)."""

    kind: str
    state: str
    failures: int
    """Failures within the window of the kind's policy."""
    opened_at: int | None
    open_until: int | None
    """Until then no task of the kind is claimable."""
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
    """The state of a breaker at a time. It is half open while a probe is running or may be claimed."""
    if open_until is None:
        return CLOSED
    return OPEN if not probing and now < open_until else HALF_OPEN
