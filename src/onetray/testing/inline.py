"""Inline: every submit runs its task at once, and what the task raises is raised by the submit.

Owns what "at once" means: in the caller's thread, with one attempt, a delay passed on the virtual clock. All of it
goes through the engine, so that events and results are there as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onetray.domain.clock import SECOND
from onetray.domain.commands import Command, Fail, Redrive, Submit
from onetray.domain.flow_commands import RetryFlow, SubmitFlow
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

ANOTHERS_S = 60.0
"""How long a task is waited for that another thread of the test runs."""


@contextmanager
def run_inline(app: Onetray, *, resources: Any = None) -> Iterator[Harness]:
    """Run what is submitted at once, on an engine in memory: `with run_inline(app): …`. Gives the harness."""
    with InlineHarness(app, resources=resources) as harness:
        yield harness


class InlineEngine(Engine):
    """An engine that lets its harness run what was submitted before it answers."""

    harness: InlineHarness

    def run(self, commands: Sequence[Command], **how: Any) -> list[Verdict]:
        verdicts = super().run(commands, **how)
        new = [id_ for pair in zip(commands, verdicts, strict=True) for id_ in _new(*pair)]
        if new:
            self.harness.run_now(new)
        return verdicts


def _new(command: Command, verdict: Verdict) -> list[str]:
    """The jobs that a command has made."""
    if verdict.error is not None:
        return []
    if isinstance(command, SubmitMany):
        return list(verdict.value)
    made = isinstance(command, Submit | SubmitFlow | Redrive | RetryFlow) and not verdict.value.repeated
    return [verdict.value.id] if made else []


class InlineHarness(Harness):
    def __init__(self, app: Onetray, **how: Any) -> None:
        super().__init__(app, **how)
        self._raised: dict[int, BaseException] = {}
        """What an attempt of a job has raised first, by the key of the task or the flow."""

    def _engine(self) -> Engine:
        engine = InlineEngine.open(self.database, clock=self.clock, seed=self._seed, config=self.app._config)
        assert isinstance(engine, InlineEngine)
        engine.harness = self
        return engine

    def run_now(self, ids: list[str]) -> None:
        """Run these jobs, all of them; then raise what went wrong."""
        jobs = [self.app.job(id_) for id_ in ids]
        for job in jobs:
            self._run_job(job)
        wrong = [error for job in jobs if (error := self._wrong(job)) is not None]
        if len(wrong) > 1:
            raise BaseExceptionGroup(f"{len(wrong)} of {len(jobs)} jobs failed", wrong)
        if wrong:
            raise wrong[0]

    def _run_job(self, job: Job[Any]) -> None:
        kinds = self._kinds(job)
        run_at = getattr(job.view(), "run_at", 0)
        self.advance(max(0, run_at - self.clock.now()) / SECOND)
        # A flow that has failed may have left something to undo.
        while kinds and (job.entity == "flow" or not job.over) and (claimed := self._claim(kinds)) is not None:
            self._run(claimed)
            self.sweep()
        for state in job.states(ANOTHERS_S):
            if state not in HELD or job.entity == "flow":
                return

    def _kinds(self, job: Job[Any]) -> list[str]:
        """What may run for a job. Nothing else does: it was not submitted here."""
        view: Any = job.view()
        if job.entity == "flow":
            return [kind for kind in self.app.tasks if kind.startswith(f"{view.name}.")]
        return [view.kind] if view.kind in self.app.tasks else []

    def _wrong(self, job: Job[Any]) -> BaseException | None:
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

    def _ended(self, run: InlineAttempt, report: Report | None, raised: BaseException | None) -> None:
        if isinstance(report, Fail):
            # The submitter is told now: there is nobody to try again for.
            report.retryable = False
            if raised is not None:
                self._raised.setdefault(run.assignment.flow or run.assignment.key, raised)
        super()._ended(run, report, raised)
