"""Send reports to the engine in batches, and retry until each is answered.

Owns the threads that report. The main one sends all reports in order. While many tasks end, or the main one waits for
an answer, helpers send plain successes too, so that several batches are in flight. A start is sent separately only for
a handler that runs for a while; otherwise the engine records it with the outcome. Sending a report twice is safe: the
engine recognises it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from onetray.config import WorkerTuning
from onetray.domain.commands import Fail, Pause, Release, Report, Start, Succeed
from onetray.domain.errors import Conflict, InvalidInput, NotFound, OnetrayError, Unavailable
from onetray.domain.task import Verdict

if TYPE_CHECKING:
    from onetray.engine.api import EngineApi
    from onetray.worker.attempt import Attempt

logger = logging.getLogger("onetray.worker")

MAX_BACKOFF_S = 2.0
MAX_TRIES = 5
"""How often a report is sent that fails for another reason than an unavailable database."""


OUTCOMES = (Succeed, Fail, Release, Pause)
"""Reports that end an attempt."""
TIMED = (Succeed, Fail)
"""Reports that carry the run time of the handler."""


class PendingReport(NamedTuple):
    attempt: Attempt
    command: Report
    on_verdict: Callable[[Verdict], None] | None


Gather = Callable[[], list[PendingReport]]
"""Takes the next batch of a thread. Called with the lock held."""


def _add_timing(pending: PendingReport, now: float) -> PendingReport:
    attempt, command = pending.attempt, pending.command
    if isinstance(command, TIMED) and attempt.began_at is not None:
        command.ran_s = now - attempt.began_at
        if attempt.start_accepted and isinstance(command, Succeed):
            command.started = True
    return pending


class Reporter:
    def __init__(
        self,
        engine: EngineApi,
        on_verdict: Callable[[Attempt, Report, Verdict], None],
        on_accepted: Callable[[list[PendingReport], list[tuple[PendingReport, Verdict]]], None] = lambda *_: None,
        tuning: WorkerTuning | None = None,
    ) -> None:
        self._tuning = tuning = tuning or WorkerTuning()
        self._engine, self._on_verdict, self._on_accepted = engine, on_verdict, on_accepted
        self._pending: deque[PendingReport] = deque()
        self._plain_successes: deque[PendingReport] = deque()
        """Successes that no other report of their attempt precedes: sent in any order, by any thread."""
        self._unsent_output: dict[int, Attempt] = {}
        self._output_due_at = 0.0
        self._starts: deque[Attempt] = deque()
        self._is_timing_starts = False
        lock = threading.Lock()
        self._ready, self._backlog = threading.Condition(lock), threading.Condition(lock)
        """One lock: the main thread waits for `_ready`, the helpers for `_backlog`."""
        self._closing = self._given_up = False
        self._sending_since: float | None = None
        """When the main thread began to send its batch (monotonic). None: it sends none."""
        self._heartbeat_requests: set[Attempt] = set()
        self._helpers = tuning.helpers
        targets = [lambda: self._send_batches(self._gather, self._ready), *[self._run_helper] * tuning.helpers]
        self._threads = [threading.Thread(target=target, name="onetray-reporter", daemon=True) for target in targets]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, attempt: Attempt, command: Report, on_verdict: Callable[[Verdict], None] | None = None) -> None:
        """Queue a report. `on_verdict` receives its verdict, in a thread of the reporter."""
        self.put_all([PendingReport(attempt, command, on_verdict)])

    def put_all(self, pending: list[PendingReport]) -> None:
        with self._ready:
            self._pending.extend(pending)
            self._ready.notify()

    def put_outcomes(self, outcomes: Sequence[tuple[Attempt, Report]]) -> None:
        plain = [PendingReport(a, r, None) for a, r in outcomes if type(r) is Succeed and not a.has_earlier_reports]
        others = [PendingReport(a, r, None) for a, r in outcomes if type(r) is not Succeed or a.has_earlier_reports]
        with self._ready:
            self._plain_successes.extend(plain)
            self._pending.extend(others)
            self._ready.notify()
            if len(self._plain_successes) >= self._tuning.backlog:
                self._backlog.notify_all()
            elif self._is_stuck():
                self._backlog.notify()

    def attempt_began(self, attempt: Attempt) -> None:
        """Send its start, unless it ends soon."""
        # Without the lock: most handlers end within `merge_starts_s`, and then there is nothing to send.
        self._starts.append(attempt)
        if not self._is_timing_starts:
            with self._ready:
                self._is_timing_starts = True
                self._ready.notify()

    def output_added(self, attempt: Attempt) -> None:
        """Send its new log lines or progress soon."""
        with self._ready:
            if not self._unsent_output:
                self._output_due_at = time.monotonic() + self._tuning.output_delay_s
                self._ready.notify()
            self._unsent_output[id(attempt)] = attempt

    def waiting_successes(self) -> int:
        """How many successes are about to be sent, with piggyback claims."""
        return len(self._plain_successes)

    def request_heartbeat(self, attempt: Attempt) -> None:
        self._heartbeat_requests.add(attempt)

    def requested_heartbeats(self) -> set[Attempt]:
        """Attempts whose handlers have called `ctx.heartbeat()` since the last call."""
        wanted, self._heartbeat_requests = self._heartbeat_requests, set()
        return wanted

    def close(self) -> None:
        """Send the remaining reports, and wait until all are answered."""
        with self._ready:
            self._closing = True
            self._ready.notify()
            self._backlog.notify_all()
        for thread in self._threads:
            thread.join()

    def give_up(self) -> None:
        """Stop retrying."""
        self._given_up = True

    def _run_helper(self) -> None:
        try:
            self._send_batches(self._gather_backlog, self._backlog)
        finally:
            with self._ready:
                self._helpers -= 1
                self._ready.notify()

    def _send_batches(self, gather: Gather, changed: threading.Condition) -> None:
        busy, tuning, main = False, self._tuning, gather == self._gather
        while True:
            if busy and len(self._plain_successes) < tuning.report_batch and not self._closing:
                # Reports arrive faster than they are written, and a large batch costs little more than a small one.
                time.sleep(tuning.gather_s)
            batch = self._next(gather, changed)
            if not batch:
                return
            busy = len(batch) >= tuning.busy_batch
            if main:
                self._sending_since = time.monotonic()
            self._send(batch)
            if main:
                self._sending_since = None

    def _next(self, gather: Gather, changed: threading.Condition) -> list[PendingReport]:
        with changed:
            while True:
                batch, main = gather(), gather == self._gather
                # The main thread ends last: a verdict that a helper receives may queue another report.
                if batch or (self._closing and not (main and self._helpers)):
                    return batch
                # A helper looks by itself, too: nothing more may end while the main thread is stuck.
                changed.wait(self._until_next() if main else self._tuning.stuck_s)

    def _until_next(self) -> float | None:
        self._is_timing_starts = bool(self._starts)
        times = [(self._starts[0].began_at or 0.0) + self._tuning.merge_starts_s] if self._is_timing_starts else []
        if self._unsent_output:
            times.append(self._output_due_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _gather(self) -> list[PendingReport]:
        """The next batch: due starts first, then log lines and progress, then outcomes."""
        now, batch = time.monotonic(), []
        lasting, most = now - self._tuning.merge_starts_s, self._tuning.report_batch
        while self._starts and (self._starts[0].has_ended or (self._starts[0].began_at or now) <= lasting):
            attempt = self._starts.popleft()
            if not attempt.has_ended and not attempt.start_sent and attempt.stop_reason is None:
                attempt.has_earlier_reports = attempt.start_sent = True
                batch.append(PendingReport(attempt, Start(**attempt.ticket()), None))
        due_output: dict[int, Attempt] = {}
        if self._pending or self._closing or now >= self._output_due_at:
            due_output, self._unsent_output = self._unsent_output, due_output
        for attempt in due_output.values():
            batch += [PendingReport(attempt, command, None) for command in attempt.take_output()]
            if attempt.has_log_lines:
                self._unsent_output[id(attempt)] = attempt
        while self._pending and len(batch) < most:
            pending = self._pending.popleft()
            if id(pending.attempt) in self._unsent_output:
                # Its log lines fill more than one report, and all of them go before its outcome.
                self._pending.appendleft(pending)
                break
            batch.append(_add_timing(pending, now))
        return batch + self._take_plain(most - len(batch))

    def _gather_backlog(self) -> list[PendingReport]:
        is_long = len(self._plain_successes) >= self._tuning.backlog
        return self._take_plain(self._tuning.report_batch) if is_long or self._is_stuck() else []

    def _is_stuck(self) -> bool:
        """Whether the main thread has waited long for its answer, for a lock or a lost connection."""
        since = self._sending_since
        return since is not None and time.monotonic() - since >= self._tuning.stuck_s

    def _take_plain(self, limit: int) -> list[PendingReport]:
        now, plain = time.monotonic(), self._plain_successes
        taken = [plain.popleft() for _ in range(min(limit, len(plain)))]
        for attempt, command, _ in taken:
            if type(command) is Succeed and attempt.began_at is not None:
                command.ran_s = now - attempt.began_at
        return taken

    def _send(self, batch: list[PendingReport]) -> None:
        """Send a batch until all of its reports are answered."""
        backoff_s, has_failed, tries = 0.05, False, 0
        while batch:
            verdicts = self._call_engine(batch)
            again: list[PendingReport] = []
            succeeded: list[PendingReport] = []
            ended: list[tuple[PendingReport, Verdict]] = []
            tries += 1
            for pending, verdict in zip(batch, verdicts, strict=True):
                if verdict.error is None and type(pending.command) is Succeed:
                    succeeded.append(pending)
                elif verdict.error is None and type(pending.command) in OUTCOMES:
                    ended.append((pending, verdict))
                elif verdict.error is None and type(pending.command) is Start:
                    pending.attempt.start_accepted = True
                elif self._is_transient(verdict.error, tries):
                    again.append(pending)
                else:
                    self._deliver(pending, verdict)
            self._on_accepted(succeeded, ended)
            if again and not has_failed:
                has_failed = True
                logger.warning("%d reports could not be sent and will be retried: %s", len(again), verdicts[-1].error)
            elif has_failed and not again:
                logger.info("the delayed reports were sent")
            batch = again
            if batch:
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _call_engine(self, batch: list[PendingReport]) -> list[Verdict]:
        """Run successes in a batch of their own, last: the engine has a fast path for those (fast_succeed.py)."""
        commands = [pending.command for pending in batch]
        successes = [c for c in commands if type(c) is Succeed]
        if not successes or len(successes) == len(commands):
            return self._run(commands)
        others = iter(self._run([c for c in commands if type(c) is not Succeed]))
        verdicts = [None if type(c) is Succeed else next(others) for c in commands]
        unavailable = next((v for v in verdicts if v is not None and isinstance(v.error, Unavailable)), None)
        # A success must not overtake the log lines of its task.
        rest = iter(self._run(successes) if unavailable is None else [unavailable] * len(successes))
        return [next(rest) if v is None else v for v in verdicts]

    def _run(self, batch: Sequence[Report]) -> list[Verdict]:
        try:
            return self._engine.run(batch)
        except Exception as e:
            logger.exception("the engine failed on %d reports", len(batch))
            return [Verdict(error=OnetrayError(f"the engine failed: {e!r}"))] * len(batch)

    def _is_transient(self, error: OnetrayError | None, tries: int) -> bool:
        """Whether to retry a report: the database is unavailable, or the error may be temporary."""
        if error is None or self._given_up or isinstance(error, InvalidInput | Conflict | NotFound):
            return False
        return isinstance(error, Unavailable) or tries < MAX_TRIES

    def _deliver(self, pending: PendingReport, verdict: Verdict) -> None:
        try:
            if pending.on_verdict is not None:
                pending.on_verdict(verdict)
            else:
                self._on_verdict(pending.attempt, pending.command, verdict)
        except Exception:
            logger.exception("the verdict on %s of %r could not be handled", pending.command.verb, pending.attempt)
