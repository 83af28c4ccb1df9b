"""Harness: an app on an engine in memory, whose tasks run when the test says so.

Owns the engine, the clock and the order of things. The engine is the real one, and so is the way from a claim to a
report; only the threads are missing.
"""

from __future__ import annotations

import asyncio
from difflib import ndiff
from typing import TYPE_CHECKING, Any

from onetray.domain.clock import VirtualClock
from onetray.domain.errors import InvalidInput, TaskCancelled, WaitForInput
from onetray.engine import Engine
from onetray.testing.inline_executor import InlineExecutor
from onetray.testing.inline_reporter import InlineAttempt
from onetray.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onetray.app.job import Job
    from onetray.app.onetray import Onetray
    from onetray.domain.commands import Report
    from onetray.domain.task import Assignment

MEMORY = "sqlite://:memory:"
WORKER = "harness"
LIMIT = 10_000
# What ends an attempt in a worker, too. Anything else that is no Exception is meant for the test: Ctrl-C, pytest.fail.
_ENDS_AN_ATTEMPT = (Exception, SystemExit, TaskCancelled, WaitForInput, asyncio.CancelledError)


class Harness:
    """Puts an app on an engine of its own for as long as the `with` block lasts. The app's database is not touched."""

    engine: Engine

    def __init__(self, app: Onetray, *, resources: Any = None, database: str = MEMORY, seed: int = 0) -> None:
        """`resources` stand in for what the app's lifespan would yield; it is not entered then.

        `database` is an empty one of your own, where the test is about that; PostgreSQL has to be migrated.
        """
        self.app, self.clock, self.database = app, VirtualClock(), database
        self._resources, self._seed, self._opened = resources, seed, False

    def open(self) -> None:
        if self._opened:
            raise InvalidInput("this harness is open already: make another one", field="harness")
        self.engine = self._engine()
        self.engine.declare(self.app.policies, namespace=self.app.namespace)
        self._room = InlineExecutor(self.app, self._resources)
        self._old, self._opened = self.app.use(self.engine), True

    def close(self, *, check: bool = True) -> None:
        """Give the app its old engine back; first `check` that no rule of onetray's own is broken."""
        try:
            self._room.close()
            if check:
                self.verify()
        finally:
            self._opened = False
            self.app.use(self._old)
            self.engine.close()

    def __enter__(self) -> Harness:
        self.open()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # A second complaint would only hide the test's own.
        self.close(check=error is None)

    # Running.

    def drain(self, limit: int = LIMIT) -> int:
        """Run everything that can run now, also what follows from it, one task after another. Answers how many."""
        ran = 0
        while (claimed := self._next()) is not None:
            if ran == limit:
                self.engine.release(claimed)
                raise AssertionError(
                    f"{limit} attempts were run, and {claimed.kind} {claimed.id} could run next: "
                    "does a task submit itself again and again? If not, give drain a higher limit"
                )
            self._run(claimed)
            ran += 1
        return ran

    def run_next(self) -> bool:
        """Run the one task that comes first. Answers whether there was one."""
        claimed = self._next()
        if claimed is not None:
            self._run(claimed)
        return claimed is not None

    def advance(self, seconds: float) -> None:
        """Move the clock, and let happen what is due then: retries, delays, deadlines, expired leases."""
        if seconds < 0:
            raise InvalidInput("the clock goes forward only: give seconds, 0 or more", field="seconds")
        self.clock.advance(seconds)
        self.sweep()

    def sweep(self) -> None:
        """Do what the janitor would do now."""
        while self.engine.sweep():
            pass

    def approve(self, job: Job[Any], stage: str, *, input: Any = None, by: str = "anonymous") -> None:
        """Approve a stage of a flow, by the stage's name."""
        stages = {s.name: s.id for s in self.engine.stages(job.id, namespace=self.app.namespace)}
        if stage not in stages:
            raise InvalidInput(f"the flow has no stage {stage!r}; it has: {', '.join(stages)}", field="stage")
        self.engine.approve_stage(stages[stage], input=input, actor_name=by, namespace=self.app.namespace)

    # Looking.

    def events(self, job: Job[Any]) -> list[str]:
        """The types of everything that happened to a job, in order."""
        return [event.type for event in job.events()]

    def assert_events(self, job: Job[Any], *types: str) -> None:
        """Exactly these events, in this order."""
        found = self.events(job)
        if found != list(types):
            lines = "\n".join(line for line in ndiff(types, found) if not line.startswith("?"))
            raise AssertionError(f"other events of job {job.id} than expected (-: missing, +: not expected):\n{lines}")

    def assert_state(self, job: Job[Any], state: str) -> None:
        view = job.view()
        if view.state != state:
            why = [] if job.over else [blocker.message for blocker in job.explain()]
            raise AssertionError(
                "\n".join([f"job {job.id} is {view.state}, not {state}", *why, *_result_of(view.error)])
            )

    def verify(self) -> None:
        """Check every rule of onetray's own on every row, as `onetray verify` does."""
        broken = verify(self.engine.store).violations
        if broken:
            lines = [f"rule {v.rule}, {v.name}: {v.message}; {v.total} rows, e.g. {v.rows[:1]}" for v in broken]
            raise AssertionError("\n".join(["rules of onetray are broken; please report this:", *lines]))

    # How.

    def _engine(self) -> Engine:
        return Engine.open(self.database, clock=self.clock, seed=self._seed, config=self.app._config)

    def _next(self) -> Assignment | None:
        """Claim what comes first, and see to what is due only when nothing does."""
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

    def _run(self, claimed: Assignment) -> None:
        run = InlineAttempt(claimed, self.app.tasks[claimed.kind], self.engine)
        run.begin()
        report, raised = self._room.attempt(run)
        self._ended(run, report, raised)
        if raised is not None and not isinstance(raised, _ENDS_AN_ATTEMPT):
            raise raised

    def _ended(self, run: InlineAttempt, report: Report | None, raised: BaseException | None) -> None:
        run.end(report)


def _result_of(error: Any) -> list[str]:
    """The error of a job: its traceback, where there is one."""
    if not isinstance(error, dict):
        return [] if error is None else [str(error)]
    detail = error.get("detail")
    trace = detail.get("traceback") if isinstance(detail, dict) else None
    return [trace or f"{error.get('class')}: {error.get('message')}"]
