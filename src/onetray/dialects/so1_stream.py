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
    line_as_so1,
    lines_of,
    outcome,
    so1_state,
)
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import TASK
from onetray.domain.listing import JobStatus
from onetray.engine.api import EngineApi
from onetray.http.services import Services
from onetray.http.streams.feed import wait_for_signal
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
        match = _CURSOR.fullmatch(text)
        if not match:
            raise InvalidInput("cursor must be the cursor of a log line, or an id of this stream", field="cursor")
        number = int(match[1])
        return cls(number, match[2] or (SO1_RUNNING if number else None))


@dataclass(frozen=True, slots=True)
class So1Changes:
    parts: bytes
    seen: Seen
    ended: bool
    more: bool


def read_so1_changes(engine: EngineApi, id_: str, namespace: str, seen: Seen, late: bool = False) -> So1Changes:
    """Read what the client has not seen. The job is read before its lines: an ended job has no later ones.

    A `late` client, which connects without a cursor after the job's end, receives only the final status.
    """
    job = find_so1_job(engine, id_, namespace)
    state = so1_state(job)
    ended = state in TERMINAL
    parts = []
    if first := _before_lines(job, state, seen.state):
        seen = seen._replace(state=first)
        parts.append(frame("status", {"state": first}, f"{seen.line}.{first}"))
    # Lines of an attempt that was lost before it started wait for the next one.
    lines = [] if state == SO1_PENDING or (late and ended) else lines_of(engine, job, namespace, seen.line, PAGE)
    for line in lines:
        seen = seen._replace(line=line.cursor)
        parts.append(frame("log", line_as_so1(line), line.cursor))
    more = len(lines) == PAGE
    if ended and not more and seen.state != state:
        seen = seen._replace(state=state)
        parts.append(frame("status", {"state": state, **outcome(engine, job, namespace)}, f"{seen.line}.{state}"))
    return So1Changes(b"".join(parts), seen, ended and not more, more)


def _before_lines(job: JobStatus, state: str, seen: str | None) -> str | None:
    """The state to send before any lines: the current one to a new client, `running` to one that has seen pending."""
    if seen is None:
        return None if state in TERMINAL else state
    return SO1_RUNNING if seen == SO1_PENDING and job.started_at is not None else None


async def frames(services: Services, job: JobStatus, namespace: str, seen: Seen | None) -> Frames:
    """The stream of a job, from the client's cursor until the terminal status."""
    late, at = seen is None, seen or Seen()
    key = job.key if job.entity == TASK.entity else None
    with services.hub.watching(job.id, key=key) as watcher:
        while True:
            watcher.signal.clear()
            changes = await services.read(read_so1_changes, services.engine, job.id, namespace, at, late)
            at, late = changes.seen, False
            if changes.parts:
                yield changes.parts
            # so1 has no event for a server that stops: the client reconnects with its cursor.
            if changes.ended or services.hub.closing:
                return
            if not changes.more:
                await wait_for_signal(watcher.signal, services.config.heartbeat_s)
