"""What the events of a job tell: its attempts, the states that it has passed, and pages of the events themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from onetray.dashboard.payloads import Shown, clean_line, pretty
from onetray.domain.errors import error_line
from onetray.domain.lifecycle import HELD, TASK
from onetray.domain.task import Event, value_of

EVENTS = 25
MAX_ATTEMPTS = 50
TRACEBACK_CHARS = 20_000
LAST = 2**62


class Failure(NamedTuple):
    """An error of an attempt, ready to show."""

    message: str
    traceback: str
    detail: Shown | None


class PastAttempt(NamedTuple):
    """One claim of a task, and how it ended."""

    number: int
    worker: str
    claimed_at: int
    started_at: int | None
    ended_at: int | None
    outcome: str
    """The state or what happened: succeeded, failed, retried, lease expired, released …; running while it lasts."""
    failure: Failure | None
    event: int


class EventPage(NamedTuple):
    """Events in the order in which they are shown, and the cursors of the pages around."""

    events: list[Event]
    newest_first: bool
    newer: int | None
    """Show events after this one."""
    older: int | None
    """Show events before this one."""


def failure_of(error: Any) -> Failure | None:
    """A stored error: its line, its traceback, and what else there is."""
    error = value_of(error)
    if error is None:
        return None
    detail = error.get("detail") if isinstance(error, dict) else None
    traceback = ""
    if isinstance(detail, dict) and isinstance(detail.get("traceback"), str):
        traceback = "\n".join(clean_line(line) for line in detail["traceback"][-TRACEBACK_CHARS:].splitlines())
        detail = {name: value for name, value in detail.items() if name != "traceback"} or None
    return Failure(error_line(error), traceback, pretty(detail))


def attempts_of(events: Sequence[Event], last_error: Any) -> list[PastAttempt]:
    """The attempts of a task, the last one first. The error of its end is in the task."""
    found: list[PastAttempt] = []
    for event in events:
        if event.version is None:
            continue
        if event.type == TASK.claim.event:
            worker = event.actor.partition(":")[2]
            found.append(PastAttempt(event.attempts, worker, event.ts, None, None, str(event.state), None, event.id))
        elif found and event.type == TASK.start.event:
            found[-1] = found[-1]._replace(started_at=event.ts, outcome=str(event.state))
        elif found and event.was in HELD and event.state not in HELD:
            error = event.payload.get("error") if isinstance(event.payload, dict) else None
            if error is None and event.state in TASK.terminal:
                error = last_error
            outcome = event.type.partition(".")[2]
            found[-1] = found[-1]._replace(ended_at=event.ts, outcome=outcome, failure=failure_of(error))
    return found[: -MAX_ATTEMPTS - 1 : -1]


def path_of_states(events: Sequence[Event], id_: str, upto: int | None = None) -> list[str]:
    """The states that an entity has passed, in order."""
    return [
        event.state
        for event in events
        if event.entity_id == id_ and event.version is not None and event.state and (upto is None or event.id <= upto)
    ]


def event_page(read: Callable[..., list[Event]], *, after: int | None, before: int | None, oldest: bool) -> EventPage:
    """A page of events. `read` takes `after` or `before`, and `limit`."""
    if after is not None or (oldest and before is None):
        found = read(after=after or 0, limit=EVENTS + 1)
        events, has_newer = found[:EVENTS], len(found) > EVENTS
        has_older = bool(after)
    else:
        found = read(before=before or LAST, limit=EVENTS + 1)
        events, has_older = found[-EVENTS:], len(found) > EVENTS
        has_newer = before is not None
    newer = events[-1].id if events and has_newer else None
    older = events[0].id if events and has_older else None
    return EventPage(events if oldest else events[::-1], not oldest, newer, older)
