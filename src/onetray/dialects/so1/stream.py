"""A job's stream in so1's format: `status` and `log` events only.

Owns the cursor: the last line and the last state that were sent. States follow from the job itself, so a client that
reconnects gets those it missed, in order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from onetray.dialects.kit import Changes, find_job
from onetray.dialects.so1.job import PENDING, RUNNING, TERMINAL, line_as_so1, outcome, so1_state
from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import TASK
from onetray.domain.listing import JobStatus
from onetray.engine.api import EngineApi
from onetray.http.streams.sse import frame

PAGE = 100
_CURSOR = re.compile(rf"(\d{{1,18}})(?:\.({'|'.join((PENDING, RUNNING, *sorted(TERMINAL)))}))?")


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
        return cls(number, match[2] or (RUNNING if number else None))


def read_so1_changes(engine: EngineApi, id_: str, namespace: str, given: Seen | None) -> Changes[Seen | None]:
    """Read what the client has not seen. The job is read before its lines: an ended job has no later ones.

    A client that connects without a cursor (None) after the job's end receives only the final status.
    """
    job, seen = find_job(engine, id_, namespace), given or Seen()
    state = so1_state(job)
    ended = state in TERMINAL
    parts = []
    if first := _before_lines(job, state, seen.state):
        seen = seen._replace(state=first)
        parts.append(frame("status", {"state": first}, f"{seen.line}.{first}"))
    # Only tasks have logs. Lines of an attempt that was lost before it started wait for the next one.
    has_lines = job.entity == TASK.entity and state != PENDING and not (given is None and ended)
    lines = engine.logs(job.id, namespace=namespace, after=seen.line, limit=PAGE) if has_lines else []
    for line in lines:
        seen = seen._replace(line=line.cursor)
        parts.append(frame("log", line_as_so1(line), line.cursor))
    more = len(lines) == PAGE
    if ended and not more and seen.state != state:
        seen = seen._replace(state=state)
        for details in engine.job_details([job.key], lines=0, namespace=namespace):
            status = {"state": state, **outcome(details.job, details.stages)}
            parts.append(frame("status", status, f"{seen.line}.{state}"))
    return Changes(b"".join(parts), seen, ended and not more, more)


def _before_lines(job: JobStatus, state: str, seen: str | None) -> str | None:
    """The state to send before any lines: the current one to a new client, `running` to one that has seen pending."""
    if seen is None:
        return None if state in TERMINAL else state
    return RUNNING if seen == PENDING and job.started_at is not None else None
