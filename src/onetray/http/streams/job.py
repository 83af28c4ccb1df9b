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

from onetray.domain.errors import InvalidInput, NotFound
from onetray.domain.flow import Flow, Progress
from onetray.domain.lifecycle import FLOW, TASK
from onetray.domain.task import Event, LogLine, Task, TaskProgress
from onetray.engine import Engine
from onetray.feed import event_of
from onetray.http.json_answers import to_json
from onetray.http.redacted_reads import redacted
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


class TaskView:
    """A job that is a task: its events, its lines, how far it says it is."""

    terminal = TASK.terminal

    def __init__(self, engine: Engine, task: Task) -> None:
        self._engine, self.id, self.key = engine, task.id, task.key
        self._of: dict[str, Any] = {"namespace": task.namespace}
        self.watched: int | None = task.key
        self._job: Task | Flow = task

    def events(self, after: int) -> list[Event]:
        self._job = self._found()
        return self._read("events_of_task", key=self.key, after=after)

    def _found(self) -> Task | Flow:
        return redacted(self._engine, self._engine.task(self.id, raw=True, **self._of))

    def _read(self, statement: str, **params: Any) -> list[Event]:
        rows = self._engine.store.read(statement, limit=PAGE, **params)
        return redacted(self._engine, [event_of(r) for r in rows])

    def lines(self, after: int) -> list[LogLine]:
        return redacted(self._engine, self._engine.logs(self.id, after=after, limit=PAGE, **self._of), self.id)

    def progress(self) -> tuple[int, dict[str, Any]]:
        """A number that changes with it, and what is told."""
        said: TaskProgress | None = self._engine.progress_of(self.id, **self._of)
        return (0, {}) if said is None else (said.at, to_json(redacted(self._engine, said, self.id)))

    def event_body(self, event: Event) -> dict[str, Any]:
        """An event; with the last one of the job itself, how it has ended."""
        told: dict[str, Any] = to_json(event)
        if event.entity_id == self.id and event.state in self.terminal:
            if self.state not in self.terminal:
                # It ended after it was read, and before its events were.
                self._job = self._found()
            told |= {"result": getattr(self._job, "result", None), "error": self._job.error}
        return told

    @property
    def state(self) -> str:
        """As it stood just before its events were read."""
        return self._job.state


class FlowView(TaskView):
    """A job that is a flow: what happens to it and to its stages. Its tasks have streams of their own."""

    terminal = FLOW.terminal

    def __init__(self, engine: Engine, flow: Flow) -> None:
        self._engine, self.id, self.key, self._of = engine, flow.id, flow.key, {"namespace": flow.namespace}
        self.watched = None
        self._job = flow
        self._names: dict[str, str] = {}

    def events(self, after: int) -> list[Event]:
        self._job = self._found()
        while True:
            keys = self._keys()
            found = self._read("events_of_course", keys=keys, after=after)
            # A stage that was added meanwhile may have an event before these.
            if keys == self._keys():
                return found

    def _found(self) -> Task | Flow:
        return redacted(self._engine, self._engine.flow(self.id, raw=True, **self._of))

    def _keys(self) -> list[int]:
        """The flow's, and its stages'."""
        return [self.key, *sorted(key for (key,) in self._engine.store.read("stage_keys_of_flows", keys=[self.key]))]

    def lines(self, after: int) -> list[LogLine]:
        return []

    def progress(self) -> tuple[int, dict[str, Any]]:
        far: Progress = self._engine.progress(self.id, **self._of)
        self._names = {stage.id: stage.name for stage in far.stages}
        told = {"percentage": far.percentage, "current_stage": far.current_stage, "counts": to_json(far.counts)}
        # Counts of what has ended only rise, but for what is added.
        return far.counts.done * 101 + far.percentage, told

    def event_body(self, event: Event) -> dict[str, Any]:
        name = self._names.get(event.entity_id)
        return {**super().event_body(event), **({"stage": name} if name else {})}


def view_of(engine: Engine, id_: str, namespace: str) -> TaskView:
    """The job, or the task of a flow, that an id stands for."""
    try:
        return TaskView(engine, engine.task(id_, namespace=namespace, raw=True))
    except NotFound:
        return FlowView(engine, engine.flow(id_, namespace=namespace))


def read_changes(view: TaskView, place: StreamPosition) -> JobChanges:
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


def _part(view: TaskView, place: StreamPosition, one: Event | LogLine) -> tuple[StreamPosition, bytes]:
    if isinstance(one, LogLine):
        place = place._replace(line=one.cursor)
        return place, frame("log", to_json(one), str(place))
    place = place._replace(event=one.id)
    name = "note" if one.version is None else "status" if one.entity_id == view.id else "stage"
    return place, frame(name, view.event_body(one), str(place))


async def job_frames(desk: Services, view: TaskView, place: StreamPosition) -> Frames:
    """Everything that happens to a job past a place, until its end is told."""
    hub = desk.hub
    with hub.watching(view.id, key=view.watched) as watcher:
        while True:
            watcher.signal.clear()
            found = await desk.read(read_changes, view, place)
            place = found.place
            if found.parts:
                yield found.parts
            if found.ended:
                return
            if hub.closing:
                yield frame("bye", {"cursor": str(place)}, str(place))
                return
            if not found.more:
                await rung(watcher.signal, desk.config.heartbeat_s)
