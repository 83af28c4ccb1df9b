"""What a handler says in a test, written at once: no thread gathers it, and nothing is sent late.

Owns the stand-in for the worker's outbox, and how an attempt sees that it should stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onetray.domain.commands import Beat, Report, Start
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.lifecycle import HELD
from onetray.worker.attempt import CANCEL, LOST, Attempt
from onetray.worker.call_handler import says_unkept, unkept
from onetray.worker.reporter import Reporter

if TYPE_CHECKING:
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.task import Assignment, Verdict
    from onetray.engine import Engine

logger = logging.getLogger("onetray.testing")


class InlineReporter(Reporter):
    """An outbox that sends each thing as it comes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, _answered)

    def put(self, run: Attempt, command: Report, told: Callable[[Verdict], None] | None = None) -> None:
        verdict = self._engine.run([command])[0]
        if isinstance(verdict.error, InvalidInput) and told is None and not says_unkept(command):
            # What the handler gave cannot be kept: the worker says so in the same way.
            command = unkept(verdict.error, run.ticket())
            verdict = self._engine.run([command])[0]
        (told or (lambda verdict: _answered(run, command, verdict)))(verdict)

    def began(self, run: Attempt) -> None:
        run.start_sent = True
        _answered(run, *self._sent(Start(**run.ticket())))

    def say(self, run: Attempt) -> None:
        for command in run.to_say():
            _answered(run, *self._sent(command))

    def wants_a_beat(self, run: Attempt) -> None:
        _answered(run, *self._sent(Beat(**run.ticket())))

    def _sent(self, command: Report) -> tuple[Report, Verdict]:
        return command, self._engine.run([command])[0]


def _answered(run: Attempt, command: Report, verdict: Verdict) -> None:
    if verdict.error is None:
        return
    logger.warning("%s of %r was refused: %s", command.verb, run, run.redacted(verdict.error))
    if isinstance(verdict.error, Conflict | NotFound):
        run.ask_to_stop(LOST)


class InlineAttempt(Attempt):
    """An attempt that looks into the database whenever it is asked whether it should stop."""

    def __init__(self, assignment: Assignment, task: TaskDefinition[Any, Any], engine: Engine) -> None:
        super().__init__(assignment, task, InlineReporter(engine), engine)

    def end(self, report: Report | None) -> None:
        """Report how it ended, unless nobody wants to know."""
        self.over = True
        if report is not None and self.stop != LOST:
            self._outbox.put(self, report)

    def asked_to_stop(self) -> str | None:
        rows = self._engine.held([self.assignment.key], namespace=self.assignment.namespace)
        if not rows or rows[0].lease != self.assignment.lease or rows[0].state not in HELD:
            self.ask_to_stop(LOST)
        elif rows[0].cancel_at is not None:
            self.ask_to_stop(CANCEL)
        return self.stop
