"""A job's stream in so1's format: `status` and `log` events only.

Owns the cursor: the last line and the last state that were sent. States follow from the job itself, so a client that
reconnects gets those it missed, in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from onetray.dialects.so1_job import (
    SO1_PENDING,
    SO1_RUNNING,
    TERMINAL,
    find_so1_job,
    line,
    lines_of,
    outcome,
    so1_state,
)
from onetray.domain.errors import InvalidInput
from onetray.domain.flow import Flow
from onetray.domain.task import Task
from onetray.engine import Engine
from onetray.http.services import Services
from onetray.http.streams.feed import rung
from onetray.http.streams.sse import Frames, frame

PAGE = 100
_CURSOR = re.compile(rf"(\d{{1,18}})(?:\.({'|'.join((SO1_PENDING, SO1_RUNNING, *sorted(TERMINAL)))}))?")


class Seen(NamedTuple):
    """What a client has received: lines up to this one, and this state last."""

    line: int = 0
    state: str | None = None

    @classmethod
    def of(cls, text: str) -> Seen:
        """Parses a line number, or a status id, which also has the state. A line implies `running`."""
        found = _CURSOR.fullmatch(text)
        if not found:
            raise InvalidInput("cursor must be the cursor of a log line, or an id of this stream", field="cursor")
        number = int(found[1])
        return cls(number, found[2] or (SO1_RUNNING if number else None))


@dataclass(frozen=True, slots=True)
class So1Changes:
    parts: bytes
    seen: Seen
    ended: bool
    more: bool


def read_so1_changes(engine: Engine, id_: str, namespace: str, seen: Seen, late: bool = False) -> So1Changes:
    """Read what the client has not received. The job is read before its lines, so none is missing at its end.

    A late client, which connects after the end without a cursor, receives only the final status.
    """
    job = find_so1_job(engine, id_, namespace)
    state = so1_state(job)
    ended = state in TERMINAL
    parts = []
    if told := _before_lines(job, state, seen.state):
        seen = seen._replace(state=told)
        parts.append(frame("status", {"state": told}, f"{seen.line}.{told}"))
    # Lines of an attempt whose lease was lost before its start are sent with the next attempt.
    lines = [] if state == SO1_PENDING or (late and ended) else lines_of(engine, job, seen.line, PAGE)
    for one in lines:
        seen = seen._replace(line=one.cursor)
        parts.append(frame("log", line(one), one.cursor))
    more = len(lines) == PAGE
    if ended and not more and seen.state != state:
        seen = seen._replace(state=state)
        parts.append(frame("status", {"state": state, **outcome(engine, job)}, f"{seen.line}.{state}"))
    return So1Changes(b"".join(parts), seen, ended and not more, more)


def _before_lines(job: Task | Flow, state: str, told: str | None) -> str | None:
    """The state to send before any lines: the current one to a new client, `running` to one that knows `pending`."""
    if told is None:
        return None if state in TERMINAL else state
    return SO1_RUNNING if told == SO1_PENDING and job.started_at is not None else None


async def frames(desk: Services, job: Task | Flow, seen: Seen | None) -> Frames:
    """The stream of a job, after what the client has received, until the terminal status."""
    late, at = seen is None, seen or Seen()
    key = job.key if isinstance(job, Task) else None
    with desk.hub.watching(job.id, key=key) as watcher:
        while True:
            watcher.signal.clear()
            found = await desk.read(read_so1_changes, desk.engine, job.id, job.namespace, at, late)
            at, late = found.seen, False
            if found.parts:
                yield found.parts
            # so1 has no event for a stopping server: the client reconnects with its cursor.
            if found.ended or desk.hub.closing:
                return
            if not found.more:
                await rung(watcher.signal, desk.config.heartbeat_s)
