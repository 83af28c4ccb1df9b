"""Job: a submitter's handle to a job: its state, result, progress, events and log; and what may be done to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onetray.app.failure import job_failed, not_ended_yet
from onetray.app.job_parts import Children, children_of, waiting_stage, waiting_task
from onetray.domain.errors import InvalidInput, NotFound
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

    __slots__ = ("_load", "app", "entity", "id", "repeated", "window")

    def __init__(
        self,
        app: Onetray,
        id: str,
        entity: str = "task",
        load: Callable[[Any], R] | None = None,
        repeated: bool = False,
        window: str | None = None,
    ) -> None:
        self.app, self.id, self.entity, self._load = app, id, entity, load
        self.repeated = repeated
        """Whether the submit returned an existing job: with the same idempotency or unique key, or by `window`."""
        self.window = window
        """`debounced` if the submit has replaced the payload of a job that waits, `throttled` if it created none."""

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    @property
    def state(self) -> str:
        """Its state now, such as `queued`, `running`, `waiting`, `succeeded` or `failed`."""
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
        raise not_ended_yet(self, self.state, timeout_s)

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
        """The result of a job that has ended. Raises JobFailed, which says why, if there is none."""
        view = self.view()
        if view.state not in (SUCCEEDED, PARTIAL):
            raise job_failed(self.app.engine, view)
        if self.entity == "flow":
            value: Any = self.results()
        else:
            value = view.result  # type: ignore[union-attr]
        return self._load(value) if self._load is not None else value

    def results(self) -> dict[str, Any]:
        """The result of each stage of a flow, by stage name, also before the end."""
        if self.entity != "flow":
            raise InvalidInput("a task has no stages: use result()", field="job")
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
        """How much of it is done. A flow also has its stages; a task what its handler reported last."""
        engine = self.app.engine
        read = engine.progress if self.entity == "flow" else engine.task_progress
        return read(self.id, namespace=self.app.namespace)

    def children(self, *, limit: int = 1_000) -> Children:
        """The stages and tasks of a flow, and the jobs that the job's handlers submitted.

        `limit` bounds the tasks, and the jobs. It reads one event of every job with the same correlation id.
        """
        return children_of(self.app.engine, self.view(), limit)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Its events, in order; with `follow`, until the job has ended."""
        return self._pages(self.events_after, lambda event: event.id, follow)

    def events_after(self, cursor: int) -> list[Event]:
        """One page of its events, after this event id."""
        engine, namespace = self.app.engine, self.app.namespace
        read = engine.flow_events if self.entity == "flow" else engine.events
        return read(self.id, namespace=namespace, after=cursor)

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """The log lines of its handler, or of all handlers of a flow; with `follow`, until the job has ended."""
        return self._pages(self.logs_after, lambda line: line.cursor, follow)

    def logs_after(self, cursor: int) -> list[LogLine]:
        """One page of its log, after this cursor."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity != "flow":
            return engine.logs(self.id, namespace=namespace, after=cursor)
        while reports := engine.member_reports(self.id, namespace=namespace, after=cursor):
            # Progress is numbered together with the lines.
            lines = [
                LogLine(r.cursor, r.ts, r.attempt, r.level or "", r.line, r.data) for r in reports if r.line is not None
            ]
            if lines:
                return lines
            cursor = reports[-1].cursor
        return []

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
        """Why the job does not run: each reason, who holds it, when it ends; of an ended job, how it ended. Empty if a
        worker may claim it now."""
        return self.app.engine.explain(self.id, namespace=self.app.namespace)

    def cancel(self, *, hard: bool = False, by: str = "anonymous") -> str:
        """Request cancellation, or with `hard` cancel at once. Returns the state."""
        engine, namespace = self.app.engine, self.app.namespace
        cancel = engine.cancel_flow if self.entity == "flow" else engine.cancel
        return cancel(self.id, hard=hard, actor_name=by, namespace=namespace).state

    def resume(self, input: Any = None, *, by: str = "anonymous") -> str:
        """Resume a paused flow, or a paused task with this input. Returns the state. For an answer use `answer`."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            if input is not None:
                raise InvalidInput("a flow takes no input: answer its waiting task with answer()", field="input")
            return engine.resume_flow(self.id, actor_name=by, namespace=namespace).state
        return engine.resume(self.id, input=input, actor_name=by, namespace=namespace).state

    def approve(
        self, stage: str | None = None, *, input: Any = None, note: str | None = None, by: str = "anonymous"
    ) -> str:
        """Approve the stage of a flow that waits for it, with the input that its form requires. Returns its state.

        `stage` is its name or id; by default the one whose turn it is. Raises Conflict if none waits.
        """
        engine, namespace = self.app.engine, self.app.namespace
        id_ = self._waiting_stage(stage)
        return engine.approve_stage(id_, input=input, note=note, actor_name=by, namespace=namespace).state

    def reject(self, stage: str | None = None, *, note: str | None = None, by: str = "anonymous") -> str:
        """Reject the stage of a flow that waits for approval: it fails. Returns its state."""
        engine, namespace = self.app.engine, self.app.namespace
        return engine.reject_stage(self._waiting_stage(stage), note=note, actor_name=by, namespace=namespace).state

    def _waiting_stage(self, stage: str | None) -> str:
        if self.entity != "flow":
            raise InvalidInput(
                "a task has no stages to approve or reject: if it waits for input, use answer()", field="stage"
            )
        return waiting_stage(self.app.engine, self.id, stage, self.app.namespace)

    def answer(self, input: Any, *, task: str | None = None, by: str = "anonymous") -> str:
        """Resume the task that waits for input (`ctx.wait_for_input`), with this input. Returns its state.

        `task` is the name or the id of a flow's task, if several wait. Raises Conflict if none does.
        """
        if input is None:
            raise InvalidInput("None is no answer, and the task would wait again: pass another value", field="input")
        engine, namespace = self.app.engine, self.app.namespace
        id_ = self.id
        if self.entity == "flow":
            id_ = waiting_task(engine, self.id, task, namespace)
        elif task is not None:
            raise InvalidInput("task= names a task of a flow, and this job is a single task: omit it", field="task")
        return engine.resume(id_, input=input, actor_name=by, namespace=namespace).state

    def retry(
        self,
        *,
        from_stage: str | None = None,
        delay_s: float = 0.0,
        keep_attempts: bool = False,
        by: str = "anonymous",
    ) -> Job[R]:
        """Run an ended job again, as a new job linked to this one.

        A flow continues from its failed stage, or from the stage of the name `from_stage`. Only a task takes a delay,
        and can count its attempts so far against the budget of the new one."""
        engine, namespace = self.app.engine, self.app.namespace
        if self.entity == "flow":
            if delay_s or keep_attempts:
                raise InvalidInput("a flow has no delay and no attempts: they are of its tasks", field="delay_s")
            new: str | None = engine.retry_flow(self.id, from_stage=from_stage, actor_name=by, namespace=namespace).id
        elif from_stage is not None:
            raise InvalidInput("a task has no stages: omit from_stage", field="from_stage")
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
        flow = app.flow_of(_flow_name(app, id))
        return Job(app, id, "flow", flow.result if flow is not None else None)
    task = app.task_of(kind)
    return Job(app, id, "task", task.signature.result if task is not None else None)


def _flow_name(app: Onetray, id: str) -> str:
    try:
        return app.engine.flow(id, namespace=app.namespace).name
    except NotFound:
        # No task either: what was asked for is a job, whichever it would have been.
        raise NotFound(f"there is no job {id}", job=id) from None
