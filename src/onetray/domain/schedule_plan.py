"""Decide what happens when a janitor looks at a schedule: which fire times are submitted, skipped or queued.

Pure: no clock and no database. schedule_steps.py of the engine reads what a plan needs, and carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

from onetray.domain.clock import SECOND, utc_text
from onetray.domain.lifecycle import CANCELLED, DEAD_LETTERED, FAILED, FLOW, TASK
from onetray.domain.schedule import (
    ALL,
    ALLOW,
    CANCEL_RUNNING,
    LAST,
    QUEUE_ONE,
    QUEUED,
    SKIPPED_MISSED,
    SKIPPED_OVERLAP,
    SUBMITTED,
    ScheduleSpec,
)

STEP = 100
"""How many fire times one transaction submits at most."""
COUNTED = 1_000
"""How many missed fire times are counted at most."""
GRACE_US = 60 * SECOND
"""A fire time is missed if a later one has come already, or if it is later than this."""
POLL_US, MAX_POLL_US = SECOND, 60 * SECOND
"""How often to look whether the job has ended for which a queued fire waits; and the longest time between two looks at
a job whose failure would pause the schedule."""
_ENDED = TASK.terminal | FLOW.terminal


class OpenFire(Protocol):
    """A fire that waits for its turn, or whose job was open when a janitor last looked."""

    @property
    def fire_at(self) -> int: ...
    @property
    def manual(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def job_state(self) -> str | None: ...
    @property
    def entity(self) -> str | None: ...


class Decision(NamedTuple):
    """What a fire time comes to."""

    fire_at: int
    outcome: str
    why: str | None = None
    missed: int = 0
    """How many further fire times it stands for."""


@dataclass(slots=True)
class Plan:
    """What a look at a schedule changes."""

    failures: int
    """How many of its jobs have failed in a row."""
    next_fire_at: int | None
    look_at: int | None = None
    closed: list[OpenFire] = field(default_factory=list)
    """Fires whose jobs have ended."""
    pause_why: str | None = None
    """It pauses itself: nothing else happens."""
    released: OpenFire | None = None
    """The fire that has waited and is submitted now."""
    decisions: list[Decision] = field(default_factory=list)
    cancelled: list[OpenFire] = field(default_factory=list)
    """Fires whose jobs are cancelled."""


def plan(spec: ScheduleSpec, next_fire_at: int | None, failures: int, watched: Sequence[OpenFire], now: int) -> Plan:
    """Decide for a schedule that is neither paused nor orphaned. `watched`: its open fires, oldest first."""
    made = Plan(failures, next_fire_at)
    running, waiting = _watch(made, watched)
    if spec.pause_after_failures is not None and made.failures >= spec.pause_after_failures:
        made.pause_why = _failed_text(made.failures)
        return made
    if waiting is not None and not running:
        made.released, waiting = waiting, None
    if next_fire_at is not None:
        missed, due, made.next_fire_at = _due_times(spec, next_fire_at, now)
        made.decisions += missed
        waits = _overlap(spec, made, due, running, waiting is not None)
    else:
        waits = waiting is not None
    made.look_at = _next_look(spec, made, running, waits, now)
    return made


def _failed_text(failures: int) -> str:
    return "its last job has failed" if failures == 1 else f"its last {failures} jobs have failed"


def _watch(made: Plan, watched: Sequence[OpenFire]) -> tuple[list[OpenFire], OpenFire | None]:
    """Count the failures among the ended jobs. Returns the fires with open jobs, and the one that waits."""
    running: list[OpenFire] = []
    waiting: OpenFire | None = None
    for fire in watched:
        if fire.outcome == QUEUED:
            waiting = fire
        elif fire.job_state is not None and fire.job_state not in _ENDED:
            running.append(fire)
        else:
            made.closed.append(fire)
            if fire.job_state in (FAILED, DEAD_LETTERED):
                made.failures += 1
            elif fire.job_state not in (None, CANCELLED):
                made.failures = 0
    return running, waiting


def _due_times(spec: ScheduleSpec, first: int, now: int) -> tuple[list[Decision], list[int], int | None]:
    """The missed fire times, as one decision; those to fire; and the next one, which may be due, too."""
    if spec.catch_up == ALL:
        return _all_due(spec, first, now)
    times, following = _upto_now(spec, first, now, COUNTED)
    if not times:
        return [], [], following
    count, newest = len(times), times[-1]
    if following is not None and _is_due(spec, following, now):
        newest = spec.calendar.newest_upto(now - int(spec.jitter_s * SECOND)) or newest
        following = spec.calendar.next_after(newest)
    late_us = now - newest - spec.delay_us(newest)
    is_taken = late_us <= GRACE_US or (spec.catch_up == LAST and now - newest <= spec.catch_up_s * SECOND)
    if not is_taken:
        return _missed(times[0], count), [], following
    return (_missed(times[0], count - 1) if newest != times[0] else []), [newest], following


def _all_due(spec: ScheduleSpec, first: int, now: int) -> tuple[list[Decision], list[int], int | None]:
    oldest = now - max(int(spec.catch_up_s * SECOND), GRACE_US)
    missed: list[Decision] = []
    if first < oldest:
        gone, following = _upto_now(spec, first, oldest - 1, COUNTED)
        missed = _missed(first, max(len(gone), 1))
        if following is not None and following < oldest:
            following = spec.calendar.next_after(oldest - 1)
        if following is None:
            return missed, [], None
        first = following
    times, following = _upto_now(spec, first, now, STEP)
    return missed, times, following


def _upto_now(spec: ScheduleSpec, first: int, now: int, most: int) -> tuple[list[int], int | None]:
    """The due fire times from the first one on, and the one that follows them."""
    times: list[int] = []
    for fire_at in chain([first], spec.calendar.after(first)):
        if len(times) == most or not _is_due(spec, fire_at, now):
            return times, fire_at
        times.append(fire_at)
    return times, None


def _is_due(spec: ScheduleSpec, fire_at: int, now: int) -> bool:
    return fire_at + spec.delay_us(fire_at) <= now


def _missed(first: int, count: int) -> list[Decision]:
    number = f"at least {count:,}" if count >= COUNTED - 1 else f"{count:,}"
    why = "nobody could fire at this time" if count == 1 else f"nobody could fire at {number} times from this one on"
    return [Decision(first, SKIPPED_MISSED, why, count - 1)]


def _overlap(spec: ScheduleSpec, made: Plan, due: list[int], running: list[OpenFire], waits: bool) -> bool:
    """Decide about fire times that have come. Returns whether a fire waits for its turn afterwards."""
    is_open = bool(running) or made.released is not None
    for i, fire_at in enumerate(due):
        if spec.overlap == CANCEL_RUNNING and i < len(due) - 1:
            why = "the job of the next fire time would have cancelled its job at once"
            made.decisions.append(Decision(fire_at, SKIPPED_OVERLAP, why))
        elif spec.overlap == CANCEL_RUNNING:
            made.cancelled += running
            made.decisions.append(Decision(fire_at, SUBMITTED))
        elif spec.overlap == ALLOW or not is_open:
            made.decisions.append(Decision(fire_at, SUBMITTED))
            is_open = True
        elif spec.overlap == QUEUE_ONE and not waits:
            made.decisions.append(Decision(fire_at, QUEUED, _open_text(running, "it waits until")))
            waits = True
        else:
            made.decisions.append(Decision(fire_at, SKIPPED_OVERLAP, _open_text(running, "still open:")))
    return waits


def _open_text(running: list[OpenFire], before: str) -> str:
    if not running:
        return f"{before} the job of the fire time before"
    newest = running[-1]
    return f"{before} job {newest.job_id} of {utc_text(newest.fire_at)}"


def _next_look(spec: ScheduleSpec, made: Plan, running: list[OpenFire], waits: bool, now: int) -> int | None:
    times = [] if made.next_fire_at is None else [made.next_fire_at + spec.delay_us(made.next_fire_at)]
    if waits:
        times.append(now + POLL_US)
    if spec.pause_after_failures is not None:
        submitted = [d.fire_at for d in made.decisions if d.outcome == SUBMITTED]
        newest = max([*submitted, *(fire.fire_at for fire in running)], default=None)
        if newest is not None or made.released is not None:
            times.append(now + min(max(now - (newest or now), POLL_US), MAX_POLL_US))
    return min(times, default=None)
