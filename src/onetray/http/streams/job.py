"""The stream of one job: its states, its log, how far it is, its stages.

Owns the cursor of such a stream and what one look at the job tells. It reads by job, without the feed's barrier: what
happens to a task, or to a flow and its stages, is written under one lock, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any, NamedTuple

from onetray.domain.errors import InvalidInput
from onetray.domain.lifecycle import MACHINES, TASK
from onetray.domain.listing import JobStatus
from onetray.domain.task import Event, LogLine
from onetray.engine.api import EngineApi
from onetray.http.json_answers import to_json
from onetray.http.services import Services
from onetray.http.streams.feed import rung
from onetray.http.streams.sse import Frames, frame

PAGE = 100
"""Events, and lines, of one look: lines may be long, and there may be many streams."""
_CURSOR = re.compile(r"e(\d{1,19})\.l(\d{1,19})\.p(\d{1,19})")


class StreamPosition(NamedTuple):
    """How far a client has got: the last event, the last line, the last word about progress."""

    event: int = 0
    line: int = 0
    progress: int = 0

    def __str__(self) -> str:
        return f"e{self.event}.l{self.line}.p{self.progress}"

    @classmethod
    def of(cls, text: str) -> StreamPosition:
        found = _CURSOR.fullmatch(text)
        if not found or any(int(part) >= 2**62 for part in found.groups()):
            raise InvalidInput("cursor must be an id that this stream has given, such as e12.l34.p0", field="cursor")
        return cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class JobChanges:
    """What a look at the job found to tell."""

    parts: bytes
    place: StreamPosition
    ended: bool
    """Whether the last of it is told: the terminal status, now or before."""
    more: bool
    """Whether there was more than a page."""


class JobView:
    """A task, or a flow with its stages, as its stream tells it. The tasks of a flow have streams of their own."""

    def __init__(self, engine: EngineApi, job: JobStatus, namespace: str) -> None:
        self._engine, self._namespace = engine, namespace
        self._is_task = job.entity == TASK.entity
        self.id, self.state = job.id, job.state
        self.terminal = MACHINES[job.entity].terminal
        self.watched = job.key if self._is_task else None
        self._names: dict[str, str] = {}

    def events(self, after: int) -> list[Event]:
        # First: what happened up to this state is read.
        self.state = self._engine.job_status(self.id, namespace=self._namespace).state
        return self._engine.own_events(self.id, after=after, limit=PAGE, namespace=self._namespace)

    def lines(self, after: int) -> list[LogLine]:
        if not self._is_task:
            return []
        return self._engine.logs(self.id, after=after, limit=PAGE, namespace=self._namespace)

    def progress(self) -> tuple[int, dict[str, Any]]:
        """A number that changes with it, and what is told."""
        if self._is_task:
            last = self._engine.progress_of(self.id, namespace=self._namespace)
            return (0, {}) if last is None else (last.at, to_json(last))
        far = self._engine.progress(self.id, namespace=self._namespace)
        self._names = {stage.id: stage.name for stage in far.stages}
        numbers = {"percentage": far.percentage, "current_stage": far.current_stage, "counts": to_json(far.counts)}
        # Counts of what has ended only rise, but for what is added.
        return far.counts.done * 101 + far.percentage, numbers

    def event_body(self, event: Event) -> dict[str, Any]:
        """An event; of a stage with its name; with the last one of the job itself, how it has ended."""
        body: dict[str, Any] = to_json(event)
        if event.entity_id == self.id and event.state in self.terminal:
            read = self._engine.task if self._is_task else self._engine.flow
            job: Any = read(self.id, namespace=self._namespace, raw=True)
            body |= {"result": getattr(job, "result", None), "error": job.error}
        name = self._names.get(event.entity_id)
        return body if name is None else {**body, "stage": name}


def view_of(engine: EngineApi, id_: str, namespace: str) -> JobView:
    """The job, or the task of a flow, that an id stands for."""
    return JobView(engine, engine.job_status(id_, namespace=namespace), namespace)


def read_changes(view: JobView, place: StreamPosition) -> JobChanges:
    """What there is to tell past a place. Events are read before lines: no line is later than the end."""
    events = view.events(place.event)
    lines = view.lines(place.line)
    number, progress = view.progress()
    more = PAGE in (len(events), len(lines))
    end = next((i for i, e in enumerate(events) if e.entity_id == view.id and e.state in view.terminal), None)
    parts = []
    for _, one in merge(_by_time(events[:end]), _by_time(lines), key=itemgetter(0)):
        place, part = _part(view, place, one)
        parts.append(part)
    if progress and number != place.progress:
        place = place._replace(progress=number)
        parts.append(frame("progress", progress, str(place)))
    if end is not None and not more:
        place, part = _part(view, place, events[end])
        parts.append(part)
    ended = not more and (end is not None or view.state in view.terminal)
    return JobChanges(b"".join(parts), place, ended, more)


def _by_time(ones: Any) -> Iterator[tuple[int, Any]]:
    for one in ones:
        yield one.ts, one


def _part(view: JobView, place: StreamPosition, one: Event | LogLine) -> tuple[StreamPosition, bytes]:
    if isinstance(one, LogLine):
        place = place._replace(line=one.cursor)
        return place, frame("log", to_json(one), str(place))
    place = place._replace(event=one.id)
    name = "note" if one.version is None else "status" if one.entity_id == view.id else "stage"
    return place, frame(name, view.event_body(one), str(place))


async def job_frames(services: Services, view: JobView, place: StreamPosition) -> Frames:
    """Everything that happens to a job past a place, until its end is told."""
    hub = services.hub
    with hub.watching(view.id, key=view.watched) as watcher:
        while True:
            watcher.signal.clear()
            found = await services.read(read_changes, view, place)
            place = found.place
            if found.parts:
                yield found.parts
            if found.ended:
                return
            if hub.closing:
                yield frame("bye", {"cursor": str(place)}, str(place))
                return
            if not found.more:
                await rung(watcher.signal, services.config.heartbeat_s)
