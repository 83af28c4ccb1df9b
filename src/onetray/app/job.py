"""A job as its submitter sees it: its state, its result, what happened to it.

Owns waiting. It reads, and sends the few commands that a submitter may; it runs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onetray.domain.errors import JobFailed, NotFound, NotYet
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK
from onetray.domain.task import Blocker, Event, LogLine
from onetray.domain.task import Task as TaskView

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.flow import Flow, Progress

R = TypeVar("R")


class Job(Generic[R]):
    """One submitted task or flow. Nothing is kept here: every question is answered by the database."""

    __slots__ = ("_load", "app", "entity", "id", "repeated")

    def __init__(
        self,
        app: Onetray,
        id: str,
        entity: str = "task",
        load: Callable[[Any], R] | None = None,
        repeated: bool = False,
    ) -> None:
        self.app, self.id, self.entity, self._load = app, id, entity, load
        self.repeated = repeated
        """Whether a job was there already, under the same idempotency or unique key."""

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    @property
    def state(self) -> str:
        return self.view().state

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in (FLOW if self.entity == "flow" else TASK).terminal

    def view(self) -> TaskView | Flow:
        """Everything that is known about it now."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            return engine.flow(self.id, namespace=namespace)
        return engine.task(self.id, namespace=namespace)

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until it has ended; answers its last state. NotYet when the time is over first."""
        machine = FLOW if self.entity == "flow" else TASK
        for state in self.states(timeout_s):
            if state in machine.terminal:
                return state
        raise NotYet(f"job {self.id} is still {self.state} after {timeout_s} s", job=self.id, timeout_s=timeout_s)

    def states(self, timeout_s: float | None = None) -> Iterator[str]:
        """Its state, now and whenever something was written, until the time is over. The caller stops it."""
        wake, until = self.app.engine.wake, None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seen = wake.generation
            yield self.state
            left = wake.poll_s if until is None else min(wake.poll_s, until - time.monotonic())
            if left <= 0 or wake.closed:
                return
            wake.wait(seen, left)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for its result. JobFailed when it ended in another way."""
        self.wait(timeout_s)
        return self.outcome()

    def outcome(self) -> R:
        """The result of a job that has ended."""
        view = self.view()
        if view.state not in (SUCCEEDED, PARTIAL):
            raise JobFailed(_why(self.id, view.state, view.error), job=self.id, state=view.state, error=view.error)
        if self.entity == "flow":
            value: Any = self.results()
        else:
            value = view.result  # type: ignore[union-attr]
        return self._load(value) if self._load is not None else value

    def results(self) -> dict[str, Any]:
        """What each stage of a flow gave, by its name."""
        engine, namespace = self.app.engine, self.app.namespace
        declared = self.app.flows.get(engine.flow(self.id, namespace=namespace).name)
        fanned_out = {s.name for s in declared.stages.values() if s.fanned_out} if declared is not None else set()
        found = {}
        for stage in engine.stages(self.id, namespace=namespace):
            found[stage.name] = stage.result
            if stage.result is None and stage.counts.succeeded and stage.name in fanned_out:
                # Too many to be collected on the stage.
                found[stage.name] = engine.all_results(stage.id, namespace=namespace)
        return found

    def progress(self) -> Progress:
        """How far a flow is."""
        return self.app.engine.progress(self.id, namespace=self.app.namespace)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """What happened to it, in order; with `follow` until it has ended."""
        return self._pages(self.events_after, lambda event: event.id, follow)

    def events_after(self, cursor: int) -> list[Event]:
        """A page of its events: those after one by its id."""
        engine, namespace = self.app.engine, self.app.namespace
        read = engine.flow_events if self.entity == "flow" else engine.events
        return read(self.id, namespace=namespace, after=cursor)

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """The lines that its handler has logged; with `follow` until it has ended."""
        return self._pages(self.logs_after, lambda line: line.cursor, follow)

    def logs_after(self, cursor: int) -> list[LogLine]:
        """A page of its log: the lines after one by its cursor."""
        return self.app.engine.logs(self.id, namespace=self.app.namespace, after=cursor)

    def _pages(self, read: Callable[[int], list[Any]], cursor_of: Callable[[Any], int], follow: bool) -> Iterator[Any]:
        wake, after = self.app.engine.wake, 0
        while True:
            # Asked before the page is read: what is written at the end is on it.
            seen, over = wake.generation, not follow or self.over
            page = read(after)
            yield from page
            if page:
                after = cursor_of(page[-1])
            elif over or wake.closed:
                return
            else:
                wake.wait(seen, wake.poll_s)

    def explain(self) -> list[Blocker]:
        """Why it does not run: each reason, who holds it, when that ends. Empty: it can be claimed now."""
        return self.app.engine.explain(self.id, namespace=self.app.namespace)

    def cancel(self, *, hard: bool = False, by: str = "anonymous") -> str:
        """Ask it to stop, or with `hard` take it away at once. Answers its state."""
        engine, namespace = self.app.engine, self.app.namespace
        cancel = engine.cancel_flow if self.entity == "flow" else engine.cancel
        return cancel(self.id, hard=hard, actor_name=by, namespace=namespace).state

    def resume(self, input: Any = None, *, by: str = "anonymous") -> str:
        """Let it go on: a task that waits for input gets this one, a flow was paused. Answers its state."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            return engine.resume_flow(self.id, actor_name=by, namespace=namespace).state
        return engine.resume(self.id, input=input, actor_name=by, namespace=namespace).state

    def retry(self, *, by: str = "anonymous") -> Job[R]:
        """Submit it again once it has ended: a new job that names this one. A flow goes on from where it failed."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            new: str | None = engine.retry_flow(self.id, actor_name=by, namespace=namespace).id
        else:
            new = engine.redrive(self.id, actor_name=by, namespace=namespace).id
        assert new is not None
        return type(self)(self.app, new, self.entity, self._load)


def find_job(app: Onetray, id: str) -> Job[Any]:
    """The job of this id: a task or a flow."""
    try:
        kind = app.engine.task(id, namespace=app.namespace).kind
    except NotFound:
        app.engine.flow(id, namespace=app.namespace)
        return Job(app, id, "flow")
    task = app.tasks.get(kind)
    return Job(app, id, "task", task.signature.result if task is not None else None)


def _why(id: str, state: str, error: Any) -> str:
    said = f": {error.get('class', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    return f"job {id} is {state}{said}"
