"""Harness: an app on an engine in memory, whose tasks run when the test calls `drain` or `run_next`.

Owns the engine and the virtual clock. The engine is the real one, and tasks go from claim to report as in a worker, but
in the thread of the test.
"""

from __future__ import annotations

import asyncio
from difflib import ndiff
from typing import TYPE_CHECKING, Any

from onetray.app.flow_declaration import declaration_of_flow
from onetray.app.schedules import specs_of
from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, TaskCancelled, WaitForInput
from onetray.engine import Engine
from onetray.explain.workers import CODES as ABOUT_WORKERS
from onetray.testing.inline_executor import InlineExecutor
from onetray.testing.inline_reporter import InlineAttempt
from onetray.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onetray.app.job import Job
    from onetray.app.onetray import Onetray
    from onetray.domain.commands import Report
    from onetray.domain.task import Assignment

IN_MEMORY = "sqlite://:memory:"
WORKER = "harness"
MAX_ATTEMPTS = 10_000
# Errors that end an attempt, as in a worker. Any other BaseException is meant for the test: Ctrl-C, pytest.fail.
_ATTEMPT_ERRORS = (Exception, SystemExit, TaskCancelled, WaitForInput, asyncio.CancelledError)


class Harness:
    """Gives an app its own engine for the length of a `with` block. The app's database is not touched."""

    engine: Engine

    def __init__(self, app: Onetray, *, resources: Any = None, database: str = IN_MEMORY, seed: int = 0) -> None:
        """`resources` replace what the app's lifespan yields; the lifespan is then not entered.

        `database` is the URL of an empty database to use instead of memory; PostgreSQL must be migrated.
        """
        self.app, self.clock, self.database = app, VirtualClock(), database
        self._resources, self._seed, self._opened = resources, seed, False

    def open(self) -> None:
        if self._opened:
            raise InvalidInput("this harness is already open: create another one", field="harness")
        self.engine = self._open_engine()
        self.engine.declare(self.app.policies, namespace=self.app.namespace)
        self._executor = InlineExecutor(self.app, self._resources)
        self._previous_engine, self._opened = self.app.use(self.engine), True

    def close(self, *, check: bool = True) -> None:
        """Give the app its previous engine back. With `check`, first verify the database."""
        try:
            self._executor.close()
            if check:
                self.verify()
        finally:
            self._opened = False
            self.app.use(self._previous_engine)
            self.engine.close()

    def __enter__(self) -> Harness:
        self.open()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # A failed verification would hide the test's own error.
        self.close(check=error is None)

    # Running tasks.

    def drain(self, limit: int = MAX_ATTEMPTS) -> int:
        """Run all claimable tasks, and those that they submit, one after another. Returns the number of attempts."""
        ran = 0
        while (claimed := self._next()) is not None:
            if ran == limit:
                self.engine.release(claimed)
                raise AssertionError(
                    f"{limit} attempts were run, and {claimed.kind} {claimed.id} is next: "
                    "does a task keep submitting itself? If not, pass a higher limit to drain"
                )
            ran += self._run(claimed)
        return ran

    def run_next(self) -> bool:
        """Run the next task, or the next batch. Returns whether there was one."""
        claimed = self._next()
        if claimed is not None:
            self._run(claimed)
        return claimed is not None

    def advance(self, seconds: float) -> None:
        """Advance the clock, and do what is due then: retries, delays, deadlines, expired leases, schedules."""
        if seconds < 0:
            raise InvalidInput(f"the clock cannot go back by {-seconds} s: pass 0 seconds or more", field="seconds")
        if self.app.schedules:
            self._declare_schedules()
        self.clock.advance(seconds)
        self.sweep()

    def _declare_schedules(self) -> None:
        """Register the schedules, and the flows that they may submit, as a worker does."""
        for flow in self.app.flows.values():
            self.engine.declare_flow(declaration_of_flow(flow), namespace=self.app.namespace)
        self.engine.declare_schedules(specs_of(self.app), app=self.app.name, namespace=self.app.namespace)

    def sweep(self) -> None:
        """Do what a worker's janitor would do now."""
        while self.engine.sweep():
            pass

    def approve(self, job: Job[Any], stage: str, *, input: Any = None, by: str | None = None) -> None:
        """Approve a stage of a flow, by the stage's name. By default as the user or the group that it waits for."""
        stages = {s.name: s for s in self.engine.stages(job.id, namespace=self.app.namespace)}
        if stage not in stages:
            raise InvalidInput(f"the flow has no stage {stage!r}; it has: {', '.join(stages)}", field="stage")
        name = by or (stages[stage].approval or {}).get("owner") or "anonymous"
        self.engine.approve_stage(stages[stage].id, input=input, actor_name=name, namespace=self.app.namespace)

    # Assertions.

    def events(self, job: Job[Any]) -> list[str]:
        """The types of a job's events, in order."""
        return [event.type for event in job.events()]

    def assert_events(self, job: Job[Any], *types: str) -> None:
        """Assert that the job has exactly these events, in this order."""
        actual = self.events(job)
        if actual != list(types):
            lines = "\n".join(line for line in ndiff(types, actual) if not line.startswith("?"))
            raise AssertionError(f"unexpected events of job {job.id} (-: missing, +: not expected):\n{lines}")

    def assert_state(self, job: Job[Any], state: str) -> None:
        view = job.view()
        if view.state != state:
            # The harness runs the tasks itself: that no worker is registered is no reason here.
            reasons = [] if job.over else [b for b in job.explain() if b.code not in ABOUT_WORKERS]
            why = [blocker.message for blocker in reasons]
            raise AssertionError(
                "\n".join([f"job {job.id} is {view.state}, not {state}", *why, *_describe_error(view.error)])
            )

    def verify(self) -> None:
        """Check all rules on all rows, as `onetray verify` does."""
        broken = verify(self.engine.store).violations
        if broken:
            lines = [f"rule {v.rule}, {v.name}: {v.message}; {v.total} rows, e.g. {v.rows[:1]}" for v in broken]
            raise AssertionError("\n".join(["the database breaks rules of onetray; please report this bug:", *lines]))

    # How.
    def _open_engine(self) -> Engine:
        return Engine.open(self.database, clock=self.clock, seed=self._seed, config=self.app._config)

    def _next(self) -> Assignment | None:
        """Claim the next task. Only if there is none, do what is due and try again."""
        claimed = self._claim(self.app.tasks)
        if claimed is None:
            self.sweep()
            claimed = self._claim(self.app.tasks)
        return claimed

    def _claim(self, kinds: Iterable[str]) -> Assignment | None:
        ns = self.engine.store.names.namespace(self.app.namespace)
        for queue in sorted(self.engine.store.read("queues")):
            if queue.ns == ns and (
                found := self.engine.claim(queue.name, worker=WORKER, kinds=tuple(kinds), namespace=self.app.namespace)
            ):
                return found[0]
        return None

    def _run(self, claimed: Assignment) -> int:
        """Run a claimed task, with others if its handler takes a batch. Returns the number of attempts."""
        task = self.app.tasks[claimed.kind]
        attempts = [InlineAttempt(a, task, self.engine) for a in (claimed, *self._rest_of_batch(claimed))]
        for attempt in attempts:
            attempt.begin()
        reports, raised = self._executor.run(attempts)
        for attempt, report in zip(attempts, reports, strict=True):
            self._report_outcome(attempt, report, raised)
        if raised is not None and not isinstance(raised, _ATTEMPT_ERRORS):
            raise raised
        return len(attempts)

    def _rest_of_batch(self, first: Assignment) -> list[Assignment]:
        batch = self.app.tasks[first.kind].batch
        if batch is None or batch.size == 1:
            return []
        return self.engine.claim(
            first.queue, worker=WORKER, kinds=(first.kind,), limit=batch.size - 1, namespace=self.app.namespace
        )

    def _report_outcome(self, attempt: InlineAttempt, report: Report | None, raised: BaseException | None) -> None:
        attempt.end(report)


def _describe_error(error: Any) -> list[str]:
    """A job's error as lines of text: its traceback if there is one."""
    if not isinstance(error, dict):
        return [] if error is None else [str(error)]
    detail = error.get("detail")
    trace = detail.get("traceback") if isinstance(detail, dict) else None
    return [trace or f"{error.get('class')}: {error.get('message')}"]
