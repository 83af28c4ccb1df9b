"""Inline mode: every submit runs its job before it returns, and raises what the job raised.

A job runs in the caller's thread, with one attempt; a delay advances the virtual clock. Events and results are recorded
by the engine as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onetray.domain.clock import SECOND
from onetray.domain.commands import Command, Fail, Redrive, Submit
from onetray.domain.flow_commands import RetryFlow, SubmitDeclared, SubmitFlow
from onetray.domain.lifecycle import DEAD_LETTERED, FAILED, HELD
from onetray.domain.verbs import SubmitMany
from onetray.engine import Engine
from onetray.testing.harness import Harness

if TYPE_CHECKING:
    from onetray.app.job import Job
    from onetray.app.onetray import Onetray
    from onetray.domain.commands import Report
    from onetray.domain.task import Verdict
    from onetray.testing.inline_reporter import InlineAttempt

OTHER_THREAD_TIMEOUT_S = 60.0
"""How long to wait for a task that another thread of the test runs."""


@contextmanager
def run_inline(app: Onetray, *, resources: Any = None) -> Iterator[Harness]:
    """Run every job when it is submitted, on an engine in memory: `with run_inline(app): …`. Yields the harness."""
    with InlineHarness(app, resources=resources) as harness:
        yield harness


class InlineEngine(Engine):
    """An engine whose `run` lets the harness run new jobs before it returns."""

    harness: InlineHarness

    def run(self, commands: Sequence[Command], **options: Any) -> list[Verdict]:
        verdicts = super().run(commands, **options)
        new_ids = [id_ for pair in zip(commands, verdicts, strict=True) for id_ in _new_job_ids(*pair)]
        if new_ids:
            self.harness.run_now(new_ids)
        return verdicts


def _new_job_ids(command: Command, verdict: Verdict) -> list[str]:
    """The ids of the jobs that a command has created."""
    if verdict.error is not None:
        return []
    if isinstance(command, SubmitMany):
        return list(verdict.value)
    submits = Submit | SubmitFlow | SubmitDeclared | Redrive | RetryFlow
    return [verdict.value.id] if isinstance(command, submits) and not verdict.value.repeated else []


class InlineHarness(Harness):
    def __init__(self, app: Onetray, **options: Any) -> None:
        super().__init__(app, **options)
        self._raised: dict[int, BaseException] = {}
        """The first error that a job's handlers raised, by the key of its task or flow."""

    def _open_engine(self) -> Engine:
        engine = InlineEngine.open(self.database, clock=self.clock, seed=self._seed, config=self.app._config)
        assert isinstance(engine, InlineEngine)
        engine.harness = self
        return engine

    def run_now(self, ids: list[str]) -> None:
        """Run all of these jobs, then raise their errors."""
        jobs = [self.app.job(id_) for id_ in ids]
        for job in jobs:
            self._run_job(job)
        errors = [error for job in jobs if (error := self._error_of(job)) is not None]
        if len(errors) > 1:
            raise BaseExceptionGroup(f"{len(errors)} of {len(jobs)} jobs failed", errors)
        if errors:
            raise errors[0]

    def _run_job(self, job: Job[Any]) -> None:
        kinds = self._kinds(job)
        run_at = getattr(job.view(), "run_at", 0)
        self.advance(max(0, run_at - self.clock.now()) / SECOND)
        # A failed flow may still have compensations to run.
        while kinds and (job.entity == "flow" or not job.over) and (claimed := self._claim(kinds)) is not None:
            self._run(claimed)
            self.sweep()
        for state in job.states(OTHER_THREAD_TIMEOUT_S):
            if state not in HELD or job.entity == "flow":
                return

    def _kinds(self, job: Job[Any]) -> list[str]:
        """The kinds to claim for a job: tasks of other kinds were not submitted by this call."""
        view: Any = job.view()
        if job.entity == "flow":
            return [kind for kind in self.app.tasks if kind.startswith(f"{view.name}.")]
        return [view.kind] if view.kind in self.app.tasks else []

    def _error_of(self, job: Job[Any]) -> BaseException | None:
        view = job.view()
        if view.state not in (FAILED, DEAD_LETTERED):
            return None
        if view.key in self._raised:
            return self._raised[view.key]
        try:
            job.outcome()
        except Exception as e:
            return e
        return None

    def _report_outcome(self, attempt: InlineAttempt, report: Report | None, raised: BaseException | None) -> None:
        if isinstance(report, Fail):
            # The submit raises now, so there is no retry.
            report.retryable = False
            if raised is not None:
                self._raised.setdefault(attempt.assignment.flow or attempt.assignment.key, raised)
        super()._report_outcome(attempt, report, raised)
