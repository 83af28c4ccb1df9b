"""Renew leases, notice cancels and lost tasks, and keep this worker registered.

Owns two threads. One talks to the database. The other uses only the clock, so that it works while the database does not
answer: it stops attempts whose lease may have expired, and logs a blocked event loop.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onetray.app.tasks import ASYNC
from onetray.domain.checks import MAX_ROWS
from onetray.domain.commands import Beat, ticket
from onetray.domain.errors import Conflict, NotFound, OnetrayError, Unavailable
from onetray.domain.lifecycle import HELD
from onetray.worker.attempt import CANCEL

if TYPE_CHECKING:
    from onetray.domain.task import Assignment, Holding, Verdict
    from onetray.engine.api import EngineApi
    from onetray.store.retry_transaction import Outage
    from onetray.worker.attempt import Attempt
    from onetray.worker.executor import Executor
    from onetray.worker.leases import HeldLeases, Lease
    from onetray.worker.reporter import Reporter

logger = logging.getLogger("onetray.worker")

POLL_INTERVAL_S = 0.4
"""How often held tasks are checked: a cancel reaches its handler within a second."""
MIN_POLL_INTERVAL_S = 0.02
REGISTER_INTERVAL_S = 5.0
BLOCKED_LOOP_S = 1.0
REFUSED = (Conflict, NotFound)
"""This worker does not hold the task any more, or the task has ended. Other tasks of the claim may still be held."""


def renew_claims(engine: EngineApi, claims: Sequence[Sequence[Assignment]]) -> list[list[Verdict]]:
    """Renew each claim by a heartbeat for its first task, all in one call. If that is refused, a second call sends one
    for each of the other tasks. Returns the verdicts of each claim, in the order of its tasks."""
    answers = [[verdict] for verdict in engine.run([Beat(**ticket(claim[0])) for claim in claims])]
    rest = [
        (verdicts, assignment)
        for claim, verdicts in zip(claims, answers, strict=True)
        if isinstance(verdicts[0].error, REFUSED)
        for assignment in claim[1:]
    ]
    if rest:
        for (verdicts, _), verdict in zip(rest, engine.run([Beat(**ticket(a)) for _, a in rest]), strict=True):
            verdicts.append(verdict)
    return answers


class Heartbeat:
    def __init__(
        self, engine: EngineApi, namespace: str, held: HeldLeases, executor: Executor, reporter: Reporter,
        lose: Callable[[Attempt, str], None], register: Callable[[], None], tick: Callable[[], None], outage: Outage,
    ) -> None:  # fmt: skip
        self._engine, self._namespace = engine, namespace
        self._held, self._executor, self._reporter = held, executor, reporter
        self._lose, self._register, self._tick, self._outage = lose, register, tick, outage
        self._stopping = threading.Event()
        self._registered_at = float("-inf")
        self._pinged_at: float | None = None
        self._blocked_logged = False
        self._threads = [
            threading.Thread(target=self._loop, args=(self._beat,), name="onetray-heartbeat", daemon=True),
            threading.Thread(target=self._loop, args=(self._watch,), name="onetray-watch", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def register_soon(self) -> None:
        """Update this worker's entry in the list of workers with the next heartbeat."""
        self._registered_at = float("-inf")

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2.0)

    @property
    def poll_interval_s(self) -> float:
        """The time between two checks: at least six checks during the shortest lease."""
        return max(MIN_POLL_INTERVAL_S, min(POLL_INTERVAL_S, self._held.shortest_s() / 6))

    def _loop(self, step: Callable[[], None]) -> None:
        while not self._stopping.wait(self.poll_interval_s):
            began_at = time.monotonic()
            try:
                step()
            except Unavailable as e:
                self._outage.failed("heartbeats wait", e, began_at)
            except Exception:
                logger.exception("a heartbeat failed")

    # The thread that talks to the database.

    def _beat(self) -> None:
        now = time.monotonic()
        wanted = self._reporter.requested_heartbeats()
        due = [
            (lease, attempts)
            for lease, attempts in self._held.leases()
            if attempts and (now >= lease.beat_at or not wanted.isdisjoint(attempts))
        ]
        if due:
            self._renew(due, now)
        self._check_held()
        if now - self._registered_at >= REGISTER_INTERVAL_S:
            self._registered_at = now
            self._register()
            self._outage.answered()

    def _renew(self, due: list[tuple[Lease, list[Attempt]]], now: float) -> None:
        # Ended attempts last: their reports may arrive before the heartbeat, which is then refused.
        claims = [(lease, sorted(attempts, key=lambda attempt: attempt.has_ended)) for lease, attempts in due]
        answers = renew_claims(self._engine, [[attempt.assignment for attempt in attempts] for _, attempts in claims])
        failed: list[OnetrayError] = []
        for (lease, attempts), verdicts in zip(claims, answers, strict=True):
            lost_reasons: dict[str, str] = {}
            for attempt, verdict in zip(attempts, verdicts, strict=False):
                if verdict.error is None:
                    lease.renewed(now)
                    lost_reasons |= dict.fromkeys(verdict.value.lost, "it has ended or was requeued")
                elif isinstance(verdict.error, REFUSED):
                    lost_reasons[attempt.assignment.id] = str(verdict.error)
                else:
                    failed.append(verdict.error)
            for attempt in attempts:
                if attempt.assignment.id in lost_reasons and not attempt.has_ended:
                    self._lose(attempt, lost_reasons[attempt.assignment.id])
        if failed:
            logger.warning("%d leases could not be renewed and will be retried: %s", len(failed), failed[0])

    def _check_held(self) -> None:
        """Stop the handlers of tasks that were cancelled or lost."""
        attempts = {attempt.assignment.key: attempt for attempt in self._held.attempts() if not attempt.has_ended}
        if not attempts:
            return
        rows = self._held_now(sorted(attempts))
        for key, attempt in attempts.items():
            row = rows.get(key)
            if row is None or row.lease != attempt.assignment.lease or row.state not in HELD:
                if not attempt.has_ended:
                    self._lose(attempt, "it was requeued, cancelled or timed out")
            elif row.cancel_at is not None and attempt.stop_reason is None:
                logger.info("cancel requested: %r", attempt)
                attempt.ask_to_stop(CANCEL)

    def _held_now(self, keys: list[int]) -> dict[int, Holding]:
        engine, namespace = self._engine, self._namespace
        pages = (keys[start : start + MAX_ROWS] for start in range(0, len(keys), MAX_ROWS))
        return {row.key: row for page in pages for row in engine.held(page, namespace=namespace)}

    # The thread that uses only the clock.

    def _watch(self) -> None:
        now = time.monotonic()
        for lease, attempts in self._held.leases():
            if now > lease.valid_until:
                for attempt in attempts:
                    if not attempt.has_ended:
                        self._lose(attempt, f"no heartbeat succeeded for {lease.length_s:g} s")
        self._check_loop(now)
        self._tick()

    def _check_loop(self, now: float) -> None:
        if self._pinged_at is None:
            self._pinged_at, self._blocked_logged = now, False
            self._executor.loop.call_soon_threadsafe(self._pong)
        elif now - self._pinged_at > BLOCKED_LOOP_S and not self._blocked_logged:
            self._blocked_logged = True
            begun = [a for a in list(self._executor.running) if a.task.isolation == ASYNC and a.began_at is not None]
            logger.warning(
                "the event loop is blocked, by one of: %s. Do blocking work in a task that is not async. Stack:\n%s",
                ", ".join(map(repr, begun)) or "(no task)", self._loop_stack(),
            )  # fmt: skip

    def _pong(self) -> None:
        assert self._pinged_at is not None
        if self._blocked_logged:
            logger.warning("the event loop was blocked for %.1f s", time.monotonic() - self._pinged_at)
        self._pinged_at = None

    def _loop_stack(self) -> str:
        frame = sys._current_frames().get(self._executor.loop_ident)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(no frame)"
