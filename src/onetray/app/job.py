"""Job: a submitter's handle to a job: state, result, events, logs; wait, cancel, resume, retry, delete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onetray.domain.errors import InvalidInput, JobFailed, NotFound, NotYet
from onetray.domain.flow import errors_of_task
from onetray.domain.lifecycle import FLOW, PARTIAL, SUCCEEDED, TASK
from onetray.domain.task import Blocker, Event, LogLine
from onetray.domain.task import Task as TaskView

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.flow import Flow, FlowError, Progress

R = TypeVar("R")


class Job(Generic[R]):
    """One submitted task or flow. It caches nothing: every call reads the database."""

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
        """Whether the submit returned an existing job with the same idempotency or unique key."""

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    @property
    def state(self) -> str:
        return self.view().state

    @property
    def over(self) -> bool:
        """Whether the job is in a terminal state."""
        return self.state in (FLOW if self.entity == "flow" else TASK).terminal

    def view(self) -> TaskView | Flow:
        """The whole Task or Flow as it is now."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            return engine.flow(self.id, namespace=namespace)
        return engine.task(self.id, namespace=namespace)

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the job has ended, and return its final state. Raises NotYet after the timeout."""
        machine = FLOW if self.entity == "flow" else TASK
        for state in self.states(timeout_s):
            if state in machine.terminal:
                return state
        raise NotYet(f"job {self.id} is still {self.state} after {timeout_s} s", job=self.id, timeout_s=timeout_s)

    def states(self, timeout_s: float | None = None) -> Iterator[str]:
        """Yield the state now and after every wake-up, until the timeout, even after the job has ended."""
        wake, until = self.app.engine.wake, None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seen = wake.generation
            yield self.state
            left = wake.poll_s if until is None else min(wake.poll_s, until - time.monotonic())
            if left <= 0 or wake.closed:
                return
            wake.wait(seen, left)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the result and return it. Raises JobFailed if the job ended without one."""
        self.wait(timeout_s)
        return self.outcome()

    def outcome(self) -> R:
        """The result of a job that has ended. Raises JobFailed if there is none."""
        view = self.view()
        if view.state not in (SUCCEEDED, PARTIAL):
            raise JobFailed(_why(self.id, view.state, view.error), job=self.id, state=view.state, error=view.error)
        if self.entity == "flow":
            value: Any = self.results()
        else:
            value = view.result  # type: ignore[union-attr]
        return self._load(value) if self._load is not None else value

    def results(self) -> dict[str, Any]:
        """The result of each stage of a flow, by stage name."""
        engine, namespace = self.app.engine, self.app.namespace
        declared = self.app.flows.get(engine.flow(self.id, namespace=namespace).name)
        fanned_out = {s.name for s in declared.stages.values() if s.fanned_out} if declared is not None else set()
        results = {}
        for stage in engine.stages(self.id, namespace=namespace):
            results[stage.name] = stage.result
            if stage.result is None and stage.counts.succeeded and stage.name in fanned_out:
                # The stage's row does not hold that many results.
                results[stage.name] = engine.all_results(stage.id, namespace=namespace)
        return results

    def progress(self) -> Progress:
        """The progress of a flow."""
        return self.app.engine.progress(self.id, namespace=self.app.namespace)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Its events, in order; with `follow`, until the job has ended."""
        return self._pages(self.events_after, lambda event: event.id, follow)

    def events_after(self, cursor: int) -> list[Event]:
        """One page of its events, after this event id."""
        engine, namespace = self.app.engine, self.app.namespace
        read = engine.flow_events if self.entity == "flow" else engine.events
        return read(self.id, namespace=namespace, after=cursor)

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """The log lines of its handler; with `follow`, until the job has ended."""
        return self._pages(self.logs_after, lambda line: line.cursor, follow)

    def logs_after(self, cursor: int) -> list[LogLine]:
        """One page of its log, after this cursor."""
        return self.app.engine.logs(self.id, namespace=self.app.namespace, after=cursor)

    def _pages(self, read: Callable[[int], list[Any]], cursor_of: Callable[[Any], int], follow: bool) -> Iterator[Any]:
        wake, after = self.app.engine.wake, 0
        while True:
            # Read before the page, so that the page after the end has everything.
            seen, over = wake.generation, not follow or self.over
            page = read(after)
            yield from page
            if page:
                after = cursor_of(page[-1])
            elif over or wake.closed:
                return
            else:
                wake.wait(seen, wake.poll_s)

    def errors(self) -> list[FlowError]:
        """What went wrong: the error of a task; of a flow the first errors of each stage, with stage and task."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            return engine.flow_errors(self.id, namespace=namespace).errors
        return errors_of_task(engine.task(self.id, namespace=namespace)).errors

    def explain(self) -> list[Blocker]:
        """Why the job does not run: each reason, who holds it, when it ends. Empty if it is claimable now."""
        return self.app.engine.explain(self.id, namespace=self.app.namespace)

    def cancel(self, *, hard: bool = False, by: str = "anonymous") -> str:
        """Request cancellation, or with `hard` cancel at once. Returns the state."""
        engine, namespace = self.app.engine, self.app.namespace
        cancel = engine.cancel_flow if self.entity == "flow" else engine.cancel
        return cancel(self.id, hard=hard, actor_name=by, namespace=namespace).state

    def resume(self, input: Any = None, *, by: str = "anonymous") -> str:
        """Resume a paused flow, or a paused task with this input. Returns the state."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            return engine.resume_flow(self.id, actor_name=by, namespace=namespace).state
        return engine.resume(self.id, input=input, actor_name=by, namespace=namespace).state

    def retry(self, *, delay_s: float = 0.0, keep_attempts: bool = False, by: str = "anonymous") -> Job[R]:
        """Run an ended job again, as a new job linked to this one. A flow continues from its failed stage.

        Only a task takes a delay, and can count its attempts so far against the budget of the new one."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            if delay_s or keep_attempts:
                raise InvalidInput("a flow has no delay and no attempts: they are of its tasks", field="delay_s")
            new: str | None = engine.retry_flow(self.id, actor_name=by, namespace=namespace).id
        else:
            options: dict[str, Any] = {"delay_s": delay_s, "keep_attempts": keep_attempts, "actor_name": by}
            new = engine.redrive(self.id, namespace=namespace, **options).id
        assert new is not None
        return type(self)(self.app, new, self.entity, self._load)

    def delete(self, *, by: str = "anonymous") -> None:
        """Delete the ended job with everything that belongs to it."""
        self.app.engine.delete_job(self.id, by=by, namespace=self.app.namespace)


def job_by_id(app: Onetray, id: str) -> Job[Any]:
    """The job with this id: a task or a flow."""
    try:
        kind = app.engine.task(id, namespace=app.namespace).kind
    except NotFound:
        app.engine.flow(id, namespace=app.namespace)
        return Job(app, id, "flow")
    task = app.task_of(kind)
    return Job(app, id, "task", task.signature.result if task is not None else None)


def _why(id: str, state: str, error: Any) -> str:
    cause = f": {error.get('class', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    return f"job {id} is {state}{cause}"
