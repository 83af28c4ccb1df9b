"""A reporter for tests: sends every report at once, in the thread of the handler.

Also owns the attempt that reads from the database whether it should stop, as no heartbeat tells it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onetray.domain.commands import Beat, Report, Start
from onetray.domain.errors import Conflict, InvalidInput, NotFound
from onetray.domain.lifecycle import HELD
from onetray.worker.attempt import CANCEL, LOST, Attempt
from onetray.worker.call_handler import invalid_outcome, is_invalid_outcome
from onetray.worker.reporter import Reporter

if TYPE_CHECKING:
    from onetray.app.tasks import TaskDefinition
    from onetray.domain.task import Assignment, Verdict
    from onetray.engine import Engine

logger = logging.getLogger("onetray.testing")


class InlineReporter(Reporter):
    """A reporter without threads."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, _handle_refusal)

    def put(self, attempt: Attempt, command: Report, on_verdict: Callable[[Verdict], None] | None = None) -> None:
        verdict = self._engine.run([command])[0]
        if isinstance(verdict.error, InvalidInput) and on_verdict is None and not is_invalid_outcome(command):
            # The outcome cannot be stored: fail the task, as a worker does.
            command = invalid_outcome(verdict.error, attempt.ticket())
            verdict = self._engine.run([command])[0]
        (on_verdict or (lambda verdict: _handle_refusal(attempt, command, verdict)))(verdict)

    def attempt_began(self, attempt: Attempt) -> None:
        attempt.start_sent = True
        _handle_refusal(attempt, *self._call(Start(**attempt.ticket())))

    def output_added(self, attempt: Attempt) -> None:
        for command in attempt.take_output():
            _handle_refusal(attempt, *self._call(command))

    def request_heartbeat(self, attempt: Attempt) -> None:
        _handle_refusal(attempt, *self._call(Beat(**attempt.ticket())))

    def _call(self, command: Report) -> tuple[Report, Verdict]:
        return command, self._engine.run([command])[0]


def _handle_refusal(attempt: Attempt, command: Report, verdict: Verdict) -> None:
    if verdict.error is None:
        return
    logger.warning("%s of %r was refused: %s", command.verb, attempt, attempt.redacted(verdict.error))
    if isinstance(verdict.error, Conflict | NotFound):
        attempt.ask_to_stop(LOST)


class InlineAttempt(Attempt):
    """An attempt that reads from the database whether it should stop."""

    def __init__(self, assignment: Assignment, task: TaskDefinition[Any, Any], engine: Engine) -> None:
        super().__init__(assignment, task, InlineReporter(engine), engine)

    def end(self, report: Report | None) -> None:
        """Send its report, unless its lease is lost."""
        self.has_ended = True
        if report is not None and self.stop_reason != LOST:
            self._reporter.put(self, report)

    def asked_to_stop(self) -> str | None:
        rows = self._engine.held([self.assignment.key], namespace=self.assignment.namespace)
        if not rows or rows[0].lease != self.assignment.lease or rows[0].state not in HELD:
            self.ask_to_stop(LOST)
        elif rows[0].cancel_at is not None:
            self.ask_to_stop(CANCEL)
        return self.stop_reason
