"""The stream of one job: its states, log, progress and stages; of a flow also what its tasks log and report.

Owns the cursor of such a stream, and how a stream follows a job (`follow`), which dialects share. It reads by job,
without the feed's barrier: all events of a task, or of a flow and its stages, are written under one lock, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from onetray.domain.errors import InvalidInput
from onetray.domain.flow import MemberReport, Progress, Stage
from onetray.domain.lifecycle import MACHINES, STAGE, TASK
from onetray.domain.listing import JobStatus
from onetray.domain.task import Event, LogLine
from onetray.engine.api import EngineApi
from onetray.http.json_answers import to_json
from onetray.http.services import Services
from onetray.http.streams.feed import wait_for_signal
from onetray.http.streams.sse import Frames, frame

P = TypeVar("P")
PAGE = 100
"""Events, and lines, per read: lines may be long, and there may be many streams."""
PERCENTS = 1_000_000
"""More than the percentages of a flow and of all its stages together."""
_CURSOR = re.compile(r"e(\d{1,19})\.l(\d{1,19})\.p(\d{1,19})(?:\.(\d{1,2}))?")
Part = tuple[str, dict[str, Any]]
"""The name and the data of a frame."""


Line = LogLine | MemberReport
"""Of a task, its log lines; of a flow, the log lines and the progress of its tasks, numbered together."""


class StreamPosition(NamedTuple):
    """What a client has received: the last event, the last line, the last progress."""

    event: int = 0
    line: int = 0
    progress: int = 0
    parts: int = 0
    """How many frames of the event after the last one, if an event has several."""

    def __str__(self) -> str:
        return f"e{self.event}.l{self.line}.p{self.progress}{f'.{self.parts}' if self.parts else ''}"

    @classmethod
    def of(cls, text: str) -> StreamPosition:
        match = _CURSOR.fullmatch(text)
        if not match or any(int(part) >= 2**62 for part in match.groups("0")):
            raise InvalidInput("cursor must be an id of an event of this stream, such as e12.l34.p0", field="cursor")
        return cls(*map(int, match.groups("0")))


@dataclass(frozen=True, slots=True)
class Changes(Generic[P]):
    """What one read found since a position."""

    parts: bytes
    position: P
    ended: bool
    """Whether the client has the terminal status, in these parts or from before."""
    more: bool
    """Whether there is more than a page."""


class JobView:
    """What the stream of a task, or of a flow and its stages, reads, and how it shows it. The events of a flow's tasks
    are in their own streams."""

    def __init__(self, engine: EngineApi, job: JobStatus, namespace: str) -> None:
        self._engine, self._namespace = engine, namespace
        self._is_task = job.entity == TASK.entity
        self.job, self.id, self.state = job, job.id, job.state
        self.terminal = MACHINES[job.entity].terminal
        self._stages: dict[str, Stage] = {}

    def events(self, after: int) -> list[Event]:
        # Before the events: they include the one that led to this state.
        self.state = self._engine.job_status(self.id, namespace=self._namespace).state
        return self._engine.own_events(self.id, after=after, limit=PAGE, namespace=self._namespace)

    def lines(self, after: int) -> Sequence[Line]:
        read = self._engine.logs if self._is_task else self._engine.member_reports
        return read(self.id, after=after, limit=PAGE, namespace=self._namespace)

    def progress(self) -> tuple[int, Part | None]:
        """A number that changes with the progress, and the progress."""
        if self._is_task:
            reported = self._engine.progress_of(self.id, namespace=self._namespace)
            return (0, None) if reported is None else (reported.at, ("progress", to_json(reported)))
        progress = self._read_flow()
        body = {
            "percentage": progress.percentage, "current_stage": progress.current_stage,
            "counts": to_json(progress.counts),
            "stages": [
                {"stage": stage.name, "percentage": stage.percentage}
                for stage in progress.stages if stage.started_at is not None and stage.state not in STAGE.terminal
            ],
        }  # fmt: skip
        # The percentages may fall when tasks are added, start again or fail; the number of ended tasks only rises.
        percents = progress.percentage + sum(stage.percentage for stage in progress.stages)
        number = progress.counts.done * PERCENTS + percents
        return number, ("progress", body)

    def _read_flow(self) -> Progress:
        progress = self._engine.progress(self.id, namespace=self._namespace)
        self._stages = {stage.id: stage for stage in progress.stages}
        return progress

    def is_end(self, event: Event) -> bool:
        return event.entity_id == self.id and event.state in self.terminal

    def parts(self, item: Event | Line) -> list[Part]:
        """What a client receives of an event or a line. It must be the same whenever it is read again."""
        if not isinstance(item, Event):
            return [_line_part(item)]
        name = "note" if item.version is None else "status" if item.entity_id == self.id else "stage"
        return [(name, self._event_body(item))]

    def _event_body(self, event: Event) -> dict[str, Any]:
        """An event; that of a stage has its name, and the job's terminal one has its result and error."""
        body: dict[str, Any] = to_json(event)
        if self.is_end(event):
            read = self._engine.task if self._is_task else self._engine.flow
            job: Any = read(self.id, namespace=self._namespace, raw=True)
            body |= {"result": getattr(job, "result", None), "error": job.error}
        stage = self._stages.get(event.entity_id)
        return body if stage is None else {**body, "stage": stage.name}


def view_of(engine: EngineApi, id_: str, namespace: str) -> JobView:
    return JobView(engine, engine.job_status(id_, namespace=namespace), namespace)


def read_changes(view: JobView, position: StreamPosition) -> Changes[StreamPosition]:
    """Read what happened since a position. Events are read before lines: an ended task logs no more."""
    events = view.events(position.event)
    lines = view.lines(position.line)
    number, progress = view.progress()
    more = PAGE in (len(events), len(lines))
    end = next((i for i, event in enumerate(events) if view.is_end(event)), None)
    frames: list[bytes] = []
    items: Iterator[Event | Line] = merge(events[:end], lines, key=attrgetter("ts"))
    for item in items:
        position = _add(frames, view, position, item)
    if progress is not None and number != position.progress:
        position = position._replace(progress=number)
        frames.append(frame(*progress, str(position)))
    if end is not None and not more:
        position = _add(frames, view, position, events[end])
    ended = not more and (end is not None or view.state in view.terminal)
    return Changes(b"".join(frames), position, ended, more)


def _add(frames: list[bytes], view: JobView, position: StreamPosition, item: Event | Line) -> StreamPosition:
    """Add the frames of an event or a line that the client has not received. Returns the position after them."""
    if isinstance(item, Event):
        sent, after = position.parts, position._replace(event=item.id, parts=0)
    else:
        sent, after = 0, position._replace(line=item.cursor)
    parts = view.parts(item)
    for n, part in enumerate(parts[sent:], sent + 1):
        at = after if n == len(parts) else position._replace(parts=n)
        frames.append(frame(*part, str(at)))
    return after


def _line_part(line: Line) -> Part:
    body: dict[str, Any] = to_json(line)
    if isinstance(line, LogLine):
        return "log", body
    is_log = line.line is not None
    unset = ("done", "total", "message") if is_log else ("level", "line", "data")
    return "log" if is_log else "task_progress", {name: value for name, value in body.items() if name not in unset}


async def follow(
    services: Services,
    job: JobStatus,
    read: Callable[[P], Changes[P]],
    position: P,
    *,
    bye: Callable[[P], bytes] | None = None,
) -> Frames:
    """What `read` finds of a job since a position, until it says that the stream has ended.

    `bye` writes a last frame when the server stops. Without it, the client reconnects with the cursor that it has.
    """
    hub = services.hub
    with hub.watching(job.id, key=job.key) as watcher:
        while True:
            watcher.signal.clear()
            changes = await services.read(read, position)
            position = changes.position
            if changes.parts:
                yield changes.parts
            if changes.ended:
                return
            if hub.closing:
                if bye is not None:
                    yield bye(position)
                return
            if not changes.more:
                await wait_for_signal(watcher.signal, services.config.heartbeat_s)


def job_frames(services: Services, view: JobView, position: StreamPosition) -> Frames:
    """The frames of a job since a position, until its terminal status."""
    return follow(services, view.job, partial(read_changes, view), position, bye=_bye)


def _bye(position: StreamPosition) -> bytes:
    return frame("bye", {"cursor": str(position)}, str(position))
