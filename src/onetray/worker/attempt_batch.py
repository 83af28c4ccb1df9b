"""Attempts that one call of a handler runs together, and how they are gathered.

Owns the time and the number that a call waits for. Each attempt keeps its own lease, cancel and report: only if all of
them are to stop is the handler interrupted. claimer.py claims for a gatherer as it does for the executor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onetray.domain.commands import Report
from onetray.worker.attempt import LOST
from onetray.worker.call_batch import TaskOfBatch

if TYPE_CHECKING:
    from onetray.app.tasks import TaskDefinition
    from onetray.worker.attempt import Attempt
    from onetray.worker.executor import Executor

CHECK_INTERVAL_S = 0.5
"""How often gathered attempts are checked for cancels."""

Outcome = tuple["Attempt", Report | None]


class AttemptBatch:
    """Attempts for one call. The executor treats it as it does a single attempt: it counts as one."""

    def __init__(self, attempts: list[Attempt], gatherer: BatchGatherer) -> None:
        self.members, self.gatherer = attempts, gatherer
        self.task = attempts[0].task
        self.claimed_at = min(attempt.claimed_at for attempt in attempts)
        self.began_at: float | None = None
        self._interrupt: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"a batch of {len(self.members)} {self.task.kind}, first {self.members[0].assignment.id}"

    @property
    def stop_reason(self) -> str | None:
        """Why the call should stop: only if all its attempts should."""
        reasons = [attempt.stop_reason for attempt in self.members]
        return None if None in reasons else next((reason for reason in reasons if reason != LOST), LOST)

    def give_resources(self, resources: Any) -> None:
        for attempt in self.members:
            attempt.resources = resources

    def drop_unstarted(self) -> list[Outcome]:
        """Take out the attempts that may not begin. Returns them with their reports."""
        unstarted = [attempt for attempt in self.members if not attempt.may_begin()]
        self.members = [attempt for attempt in self.members if attempt not in unstarted]
        return [(attempt, attempt.release_unstarted()) for attempt in unstarted]

    def may_begin(self) -> bool:
        return all(attempt.may_begin() for attempt in self.members)

    def begin(self) -> None:
        self.began_at = time.monotonic()
        for attempt in self.members:
            attempt.begin()

    def valid_until(self) -> float | None:
        """Until when no other worker can hold any of the tasks."""
        return min((until for a in self.members if (until := a.valid_until()) is not None), default=None)

    def tasks(self) -> list[TaskOfBatch]:
        return [TaskOfBatch(a.context(), a.ticket(), a.more) for a in self.members]

    def ask_to_stop(self, reason: str) -> None:
        for attempt in self.members:
            attempt.ask_to_stop(reason)

    def interrupt_by(self, interrupt: Callable[[], None] | None) -> None:
        """Set what stops the handler, from any thread. It is called once, when the last attempt is to stop."""
        self._interrupt = interrupt
        for attempt in self.members:
            attempt.interrupt = None if interrupt is None else self._member_stopped
        if interrupt is not None:
            self._member_stopped()

    def _member_stopped(self) -> None:
        interrupt = self._interrupt
        if interrupt is not None and self.stop_reason is not None:
            self._interrupt = None
            interrupt()


class BatchGatherer:
    """Gathers the attempts of one kind. To the claimer it is an executor with room for one batch, or none.

    It has room while a slot is free: other workers may be idle. If other tasks occupy all slots, it gathers one batch
    that waits for its turn.
    """

    running: frozenset[Attempt] = frozenset()
    finished = 0
    """None runs here, so that the claimer claims nothing ahead of need."""

    def __init__(
        self, task: TaskDefinition[Any, Any], executor: Executor, release: Callable[[list[Attempt], str], None]
    ) -> None:
        assert task.batch is not None
        self.kind, self._limits, self._executor, self._release = task.kind, task.batch, executor, release
        self.waiting: list[Attempt] = []
        self.changed = threading.Condition()
        self._due_at = 0.0
        self._is_waiting, self._running = False, 0
        """Whether a batch waits for a slot, and how many run."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"onetray-gather-{task.kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Attempt]:
        """Stop gathering. Returns what was gathered and not started."""
        with self.changed:
            self._stopping = True
            gathered, self.waiting = self.waiting, []
            self.changed.notify_all()
        self._thread.join(1.0)
        return [attempt for attempt in gathered if attempt.stop_reason != LOST]

    def add(self, attempts: list[Attempt]) -> bool:
        """Add claimed attempts. Returns False if it has stopped."""
        with self.changed:
            if not self._stopping:
                if not self.waiting:
                    self._due_at = time.monotonic() + self._limits.wait_s
                self.waiting += attempts
                self.changed.notify_all()
            return not self._stopping

    # What the claimer asks.

    @property
    def concurrency(self) -> int:
        executor = self._executor
        has_room = not self._is_waiting and (not self._running or len(executor.running) < executor.concurrency)
        return self._limits.size if has_room else 0

    def oldest_claimed_at(self) -> float:
        return self._executor.oldest_claimed_at()

    def withdraw(self, claimed_before: float) -> list[Attempt]:
        return self._executor.withdraw(claimed_before)

    # Its thread.

    def _run(self) -> None:
        while not self._stopping:
            stopped, batch = self._next()
            if stopped:
                self._release(stopped, "it was stopped before its batch began")
            if batch is not None:
                # Without the lock: the executor calls `left` under its own.
                self._executor.admit([batch])

    def _next(self) -> tuple[list[Attempt], AttemptBatch | None]:
        """Wait for a batch that is full or whose time is over. Returns it, and attempts that were stopped meanwhile."""
        with self.changed:
            while not self._stopping:
                stopped = [attempt for attempt in self.waiting if attempt.stop_reason is not None]
                if stopped:
                    self.waiting = [attempt for attempt in self.waiting if attempt.stop_reason is None]
                    return [attempt for attempt in stopped if attempt.stop_reason != LOST], None
                left = self._due_at - time.monotonic()
                if self.waiting and (left <= 0 or len(self.waiting) >= self._limits.size):
                    batch, self.waiting = AttemptBatch(self.waiting, self), []
                    self._is_waiting = True
                    return [], batch
                self.changed.wait(min(left, CHECK_INTERVAL_S) if self.waiting else None)
            return [], None

    # What the executor says.

    def left(self, begins: bool) -> None:
        """The batch has left the executor's list: it begins, or is released."""
        with self.changed:
            self._is_waiting, self._running = False, self._running + begins
            self.changed.notify_all()

    def ended(self) -> None:
        with self.changed:
            self._running -= 1
            self.changed.notify_all()
