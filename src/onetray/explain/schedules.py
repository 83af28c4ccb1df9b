"""Say why a schedule fires or does not, and show its rows as values."""

from __future__ import annotations

from dataclasses import asdict

from onetray.domain.clock import SECOND, duration, utc_text
from onetray.domain.schedule import (
    ACTIVE,
    ENDED,
    ORPHANED,
    PAUSED,
    QUEUED,
    SKIPPED_OVERLAP,
    Schedule,
    ScheduledFire,
    spec_of,
)
from onetray.store.shown_rows import ScheduleFireRow, ScheduleRow

CLOCKS_DIFFER_US = 60 * SECOND
"""By so much the clocks of two processes may differ."""


def shown_schedule(row: ScheduleRow, last: ScheduleFireRow | None) -> Schedule:
    """A schedule as readers see it, with its last fire."""
    definition = asdict(spec_of(row.body))
    return Schedule(
        namespace=row.namespace, **definition | {"labels": definition["labels"] or {}}, state=_state(row),
        source=row.source, app=row.app, next_fire_at=row.next_fire_at, last_fire_at=row.last_fire_at,
        last_outcome=None if last is None else last.outcome, last_job=None if last is None else last.job_id,
        last_job_state=None if last is None else last.job_state, failures_in_row=row.failures, fires=row.fires,
        paused_at=row.paused_at, paused_by=row.paused_by, paused_why=row.paused_why, orphaned_at=row.orphaned_at,
        seen_in_code_at=row.seen_at, created_at=row.created_at, created_by=row.created_by, updated_at=row.updated_at,
    )  # fmt: skip


def _state(row: ScheduleRow) -> str:
    if row.orphaned_at is not None:
        return ORPHANED
    if row.paused_at is not None:
        return PAUSED
    return ENDED if row.next_fire_at is None else ACTIVE


def fire_of(row: ScheduleFireRow) -> ScheduledFire:
    return ScheduledFire(
        row.fire_at, row.outcome, row.job_id, row.job_state, row.actor, row.at, row.why, row.missed, bool(row.manual)
    )


def reasons_of(schedule: Schedule, open_fires: list[ScheduleFireRow], now: int) -> list[str]:
    """Why it fires or does not, the most important reason first."""
    reasons = [_rests(schedule, now)]
    if schedule.state == ORPHANED and schedule.paused_at is not None:
        reasons.append(f"it is also paused by {schedule.paused_by}")
    reasons += [f"the fire of {utc_text(f.fire_at)} is queued: {f.why}" for f in open_fires if f.outcome == QUEUED]
    if schedule.last_outcome == SKIPPED_OVERLAP:
        reasons.append(f"its last fire time was skipped: with overlap {schedule.overlap!r}, jobs must not overlap")
    if schedule.failures_in_row:
        limit = schedule.pause_after_failures
        until = "" if limit is None else f", it pauses itself at {limit}"
        reasons.append(f"failed jobs in a row: {schedule.failures_in_row}{until}")
    return reasons


def _rests(schedule: Schedule, now: int) -> str:
    if schedule.state == ORPHANED:
        return (
            f"it does not fire: the app {schedule.app} no longer declares it, last seen "
            f"{utc_text(schedule.seen_in_code_at or 0)}. Remove it, or deploy an app that has it"
        )
    if schedule.state == PAUSED:
        why = f": {schedule.paused_why}" if schedule.paused_why else ""
        at = utc_text(schedule.paused_at or 0)
        return f"it does not fire: paused by {schedule.paused_by} at {at}{why}. Resume it to fire from then on"
    if schedule.next_fire_at is None:
        return f"it does not fire any more: it ended at {utc_text(schedule.ends_at or 0)}"
    if schedule.next_fire_at <= now:
        late = duration(now - schedule.next_fire_at)
        delay = f", with a delay of up to {schedule.jitter_s:g} s" if schedule.jitter_s else ""
        return (
            f"its fire time {utc_text(schedule.next_fire_at)} came {late} ago{delay}: a janitor fires it, start a "
            "worker or a server if none runs"
        )
    next_one = f"it fires next at {utc_text(schedule.next_fire_at)}, in {duration(schedule.next_fire_at - now)}"
    if schedule.last_fire_at is not None and schedule.last_fire_at > now + CLOCKS_DIFFER_US:
        last = utc_text(schedule.last_fire_at)
        return f"{next_one}, because it has fired for {last}: the clock was set back. Remove it and add it again"
    return next_one
