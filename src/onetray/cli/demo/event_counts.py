"""Counts of tasks, states and events, taken from the event log alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from onetray.domain.lifecycle import AUDIT_TYPES, HELD, TASK
from onetray.domain.task import Event
from onetray.feed import Feed

WORKER = "worker:"
REDRIVE = "redrive"


@dataclass(slots=True)
class DemoTask:
    """A task as its events describe it."""

    id: str
    job_id: str
    state: str
    holder: str | None = None
    lost_by: str | None = None
    """The worker that held it when its lease expired, until the next claim."""


class EventCounts:
    def __init__(self, feed: Feed) -> None:
        self._feed, self._cursor = feed, 0
        self.tasks: dict[str, DemoTask] = {}
        self.types: Counter[str] = Counter()
        self.jobs: set[str] = set()
        self.done_by: Counter[str] = Counter()
        self.taken_over = self.redriven = 0
        self.groups: dict[str, str] = {}
        """Tasks of which only some may be held at once, by id."""
        self.most_at_once = 0
        """The most tasks of one group that workers have held at once."""
        self.latest: deque[Event] = deque(maxlen=8)

    def read(self, on_event: Callable[[Event], None]) -> None:
        """Count all new events of the log, and call on_event with each."""
        while True:
            page = self._feed.read(self._cursor)
            for event in page.events:
                self._count(event)
                on_event(event)
            if page.next_cursor == self._cursor:
                return
            self._cursor = page.next_cursor

    def _count(self, e: Event) -> None:
        self.types[e.type] += 1
        if e.type not in AUDIT_TYPES:
            self.jobs.add(e.job_id)
        self.latest.append(e)
        if e.type.startswith("task.") and e.state is not None:
            self._move(self.tasks.setdefault(e.entity_id, DemoTask(e.entity_id, e.job_id, e.state)), e, e.state)

    def _move(self, task: DemoTask, e: Event, state: str) -> None:
        worker = e.actor.removeprefix(WORKER) if e.actor.startswith(WORKER) else None
        if e.type == TASK.submit.event and (e.cause or "").startswith(REDRIVE):
            self.redriven += 1
        elif e.type == TASK.expire.event:
            task.lost_by = task.holder
        elif e.type == TASK.claim.event:
            self.taken_over += task.lost_by is not None and task.lost_by != worker
            task.lost_by = None
        elif e.type == TASK.succeed.event and worker is not None:
            self.done_by[worker] += 1
        task.state = state
        task.holder = None if state not in HELD else worker or task.holder
        if task.id in self.groups and state in HELD:
            of = self.groups[task.id]
            held = [id_ for id_, group in self.groups.items() if group == of and self._is_held(id_)]
            self.most_at_once = max(self.most_at_once, len(held))

    def _is_held(self, id_: str) -> bool:
        return id_ in self.tasks and self.tasks[id_].state in HELD

    @property
    def events(self) -> int:
        return self.types.total()

    def by_state(self) -> Counter[str]:
        return Counter(task.state for task in self.tasks.values())

    def held_by(self, worker: str) -> list[DemoTask]:
        return [task for task in self.tasks.values() if task.holder == worker]

    def still_open(self) -> list[DemoTask]:
        return [task for task in self.tasks.values() if task.state not in TASK.terminal]
