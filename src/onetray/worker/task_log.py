"""A worker's log lines: its start, each received task, and how each ends.

Owns their text and their rate. A drain of no-ops ends thousands of tasks in a second: above LINES_PER_S only their
number is logged, once a second. Failures are never left out, only their tracebacks. What is not written is not
formatted. Secrets of tasks with a `redact` policy are hidden.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onetray import __version__
from onetray.config import hide_password
from onetray.domain.clock import SECOND
from onetray.domain.commands import Fail, Pause, Release, Report
from onetray.domain.errors import OnetrayError
from onetray.domain.lifecycle import DEAD_LETTERED, FAILED, QUEUED
from onetray.log_format import log_facts

if TYPE_CHECKING:
    from onetray.app.onetray import Onetray
    from onetray.domain.task import Verdict
    from onetray.engine.api import EngineApi
    from onetray.worker import WorkerConfig
    from onetray.worker.attempt import Attempt
    from onetray.worker.reporter import PendingReport

logger = logging.getLogger("onetray.worker")

LINES_PER_S = 100
"""Lines of one type in a second."""
WINDOW_S = 1.0
MAX_KINDS = 50
"""Kinds that the banner names."""
HIDDEN_MESSAGE = "the message is hidden, it may quote redacted values"


def log_banner(name: str, app: Onetray, config: WorkerConfig) -> None:
    """Log what this worker is: its version, its database, and what it runs."""
    kinds, database = sorted(app.tasks), hide_password(app.database)
    more = f" and {len(kinds) - MAX_KINDS} more" if len(kinds) > MAX_KINDS else ""
    log_facts(
        logger, logging.INFO,
        f"onetray {__version__}: worker {name} starts. Database: {database}; namespace: {app.namespace}; "
        f"queues: {', '.join(config.queues)}; concurrency: {config.concurrency}; "
        f"kinds: {', '.join(kinds[:MAX_KINDS])}{more}",
        {
            "version": __version__, "worker": name, "database": database, "namespace": app.namespace,
            "queues": list(config.queues), "concurrency": config.concurrency, "kinds": kinds,
        },
    )  # fmt: skip


class LineBudget:
    """Lets LINES_PER_S lines through, and counts the rest. While more come in, it lets none through.

    A batch passes as a whole or not at all: lines of a large one would delay the next batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_at = float("-inf")
        self._limit, self._written, self._left_out = LINES_PER_S, 0, 0

    def take(self, count: int, now: float) -> tuple[int, tuple[int, float] | None]:
        """How many of these lines to write. And what `close` returns, if a window is over."""
        with self._lock:
            closed = self._close(now) if now - self._began_at >= WINDOW_S else None
            allowed = count if count <= self._limit - self._written else 0
            self._written += allowed
            self._left_out += count - allowed
            return allowed, closed

    def close(self, now: float, window_s: float = WINDOW_S) -> tuple[int, float] | None:
        """End a window of at least this length: how many lines it has left out, and its length. None if none."""
        with self._lock:
            return self._close(now) if self._left_out and now - self._began_at >= window_s else None

    def _close(self, now: float) -> tuple[int, float] | None:
        length_s, left_out = now - self._began_at, self._left_out
        self._limit = 0 if self._written + left_out > LINES_PER_S * length_s else LINES_PER_S
        self._began_at, self._written, self._left_out = now, 0, 0
        return (left_out, length_s) if left_out else None


class TaskLog:
    """Called by the threads that claim and report."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine
        self._budgets = {"received": LineBudget(), "succeeded": LineBudget()}
        self._tracebacks = LineBudget()

    def received(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts[: self._allowed("received", len(attempts))]:
            a = attempt.assignment
            _log(logging.INFO, f"received {attempt!r} from queue {a.queue}", attempt, outcome="received", queue=a.queue)

    def succeeded(self, reports: Sequence[PendingReport]) -> None:
        for attempt, command, _ in reports[: self._allowed("succeeded", len(reports))]:
            _log(
                logging.INFO, f"{attempt!r} succeeded{_after(attempt, command)}", attempt, command, outcome="succeeded"
            )

    def ended(self, attempt: Attempt, command: Report, verdict: Verdict) -> None:
        """Log an accepted outcome other than a success."""
        try:
            if isinstance(command, Fail):
                self._failed(attempt, command, verdict.value.state)
            elif isinstance(command, Release):
                why = attempt.context().redacted(command.reason)
                _log(logging.INFO, f"{attempt!r} was released: {why}", attempt, outcome="released")
            elif isinstance(command, Pause):
                why = attempt.context().redacted(command.reason)
                _log(logging.INFO, f"{attempt!r} waits for {command.owner}: {why}", attempt, outcome="paused")
        except Exception:
            # The outcome is recorded, and the other reports of the batch must be handled.
            logger.exception("the end of %r could not be logged", attempt)

    def tick(self) -> None:
        """Log the numbers of seconds that are over."""
        for outcome, budget in self._budgets.items():
            _log_left_out(outcome, budget.close(time.monotonic()))

    def close(self) -> None:
        """Log the numbers that are left."""
        for outcome, budget in self._budgets.items():
            _log_left_out(outcome, budget.close(time.monotonic(), 0.0))

    def _allowed(self, outcome: str, count: int) -> int:
        """How many lines of this type may be written now."""
        if not count or not logger.isEnabledFor(logging.INFO):
            return 0
        allowed, left_out = self._budgets[outcome].take(count, time.monotonic())
        if left_out is not None:
            _log_left_out(outcome, left_out)
        return allowed

    def _failed(self, attempt: Attempt, report: Fail, state: str) -> None:
        level = logging.ERROR if state in (FAILED, DEAD_LETTERED) else logging.INFO
        if not logger.isEnabledFor(level):
            return
        whole = self._tracebacks.take(1, time.monotonic())[0] == 1
        error, trace = _error_texts(attempt, report)
        then = self._what_next(attempt, report, state, whole)
        if whole:
            facts = {"traceback": trace} if trace else {}
        else:
            facts, then = {}, f"{then}. Tracebacks of more than {LINES_PER_S} failures a second are left out"
        text = f"{attempt!r} failed{_after(attempt, report)}: {error}; {then}"
        _log(level, text, attempt, report, outcome="failed", error=error, state=state, **facts)

    def _what_next(self, attempt: Attempt, report: Fail, state: str, with_time: bool) -> str:
        if state == QUEUED:
            return f"it is retried{self._retry_time(attempt) if with_time else ''}"
        if state == DEAD_LETTERED:
            return f"it is in the dead letters ({report.reason_code or 'exhausted_retries'})"
        return "it has failed and is not retried" if state == FAILED else f"it is {state}"

    def _retry_time(self, attempt: Attempt) -> str:
        a = attempt.assignment
        try:
            task = self._engine.task(a.id, namespace=a.namespace)
        except OnetrayError:
            return ""
        at = datetime.fromtimestamp(task.run_at / SECOND, UTC).isoformat(timespec="milliseconds")
        wait_s = (task.run_at - task.updated_at) / SECOND
        # It may have been claimed again already.
        return f" in {wait_s:.1f} s, at {at}" if task.fence == a.fence + 1 and wait_s > 0 else " at once"


def _error_texts(attempt: Attempt, report: Fail) -> tuple[str, str | None]:
    """The error in one line, and its traceback, without the task's secrets."""
    error, ctx = f"{report.error_class}: {report.message}", attempt.context()
    trace = report.detail.get("traceback") if isinstance(report.detail, dict) else None
    if not ctx.redacts:
        return error, trace
    if report.stage in ("input", "output"):
        # From a check of the arguments or the result, which may quote a part of a secret.
        return f"{report.error_class}: {HIDDEN_MESSAGE}", None
    return str(ctx.redacted(error)), None if trace is None else str(ctx.redacted(trace))


def _after(attempt: Attempt, command: Report) -> str:
    return "" if attempt.began_at is None else f" after {getattr(command, 'ran_s', 0.0):.3f} s"


def _log(level: int, text: str, attempt: Attempt, command: Report | None = None, **facts: Any) -> None:
    a = attempt.assignment
    if command is not None and attempt.began_at is not None:
        facts["duration_s"] = round(getattr(command, "ran_s", 0.0), 6)
    log_facts(logger, level, text, {"task": a.id, "kind": a.kind, "attempt": a.attempt, **facts})


def _log_left_out(outcome: str, left_out: tuple[int, float] | None) -> None:
    if left_out is not None:
        count, length_s = left_out
        log_facts(
            logger, logging.INFO,
            f"{outcome}: {count:,} more tasks in {length_s:.1f} s; "
            f"above {LINES_PER_S} a second only their number is logged",
            {"outcome": outcome, "count": count, "seconds": round(length_s, 3)},
        )  # fmt: skip
