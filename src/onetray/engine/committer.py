"""Run commands that arrive at the same time in one transaction (group commit).

Owns the writer threads. If a writer is free, the caller's thread runs its commands itself; else they wait and share a
transaction with other callers. If a batch fails, each of its commands runs alone, so that one cannot fail the others.
store/retry_transaction.py decides which failures are retried.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from onetray.domain.commands import Command
from onetray.domain.errors import OnetrayError, OutcomeUnknown, StoreError, Unavailable
from onetray.domain.task import Verdict
from onetray.store.retry_transaction import retry_transaction

logger = logging.getLogger("onetray.engine")

GATHER_FROM = 8
"""After a batch of so many callers, the next one waits until they are back: each of them would have run the next batch
alone, with a commit of its own."""
GATHER_STEP_S, GATHER_S = 0.001, 0.01
"""It waits for no longer than this without another caller, and in all."""

RunBatch = Callable[[Sequence[Command]], list[Verdict]]
Watcher = Callable[[Sequence[Command], list[Verdict], float], object]
"""Called after each batch with the commands, their verdicts, and the duration in seconds."""


class CommandExecutor(Protocol):
    """Executes an engine's commands: the committer, or the sender of a remote engine."""

    def execute(self, commands: Sequence[Command]) -> list[Verdict]: ...

    def must_not_have_forked(self) -> None: ...

    def close(self) -> None: ...


class Unit:
    """The commands of one caller, and a lock that is released when their verdicts are set."""

    __slots__ = ("commands", "done", "size", "verdicts")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.size = sum([command.size for command in commands])
        self.verdicts: list[Verdict] = []
        self.done = threading.Lock()
        self.done.acquire()

    def answer(self, verdicts: list[Verdict]) -> None:
        self.verdicts = verdicts
        self.done.release()


class Committer:
    def __init__(self, run_batch: RunBatch, threads: int, chunk: int, patience_s: float, name: str) -> None:
        self._run_batch, self._chunk, self._patience_s = run_batch, chunk, patience_s
        self._max_running = threads
        self._waiting: deque[Unit] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._expected = 0
        """How many callers the last batch had, while the next one waits for them. 0: it does not wait."""
        self._gathering = False
        self._process = os.getpid()
        self.watchers: list[Watcher] = []
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def execute(self, commands: Sequence[Command]) -> list[Verdict]:
        self.must_not_have_forked()
        with self._changed:
            if self._closed:
                # A verdict, not an exception: the verdicts of earlier parts of the same call must not be lost.
                return [Verdict(error=Unavailable("the engine is closed")) for _ in commands]
            run_here = not self._expected and not self._waiting and self._running < self._max_running
            if run_here:
                self._running += 1
            else:
                unit = Unit(commands)
                self._waiting.append(unit)
                if len(self._waiting) >= self._expected and self._running < self._max_running:
                    self._changed.notify()
        if run_here:
            # Nothing to share a transaction with: another thread would only cost time.
            try:
                return self._run_alone(commands)
            finally:
                self._finished(1)
        unit.done.acquire()
        return unit.verdicts

    def _run_alone(self, commands: Sequence[Command]) -> list[Verdict]:
        try:
            return self._run_with_retries(commands)
        except Exception as e:
            return self._run_each(commands, e)

    def _finished(self, callers: int) -> None:
        with self._changed:
            self._running -= 1
            if callers >= GATHER_FROM and not self._gathering:
                self._expected = callers
            if self._closed:
                self._changed.notify_all()
            elif self._waiting and len(self._waiting) >= self._expected:
                self._changed.notify()

    def must_not_have_forked(self) -> None:
        """Raises StoreError in a forked child: it has no writer threads, and shares connections with its parent."""
        if os.getpid() != self._process:
            raise StoreError("this engine was opened before a fork: open one in each process, or spawn instead")

    def close(self) -> None:
        """Run all waiting commands, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        with self._changed:
            # Batches that run in threads of callers.
            self._changed.wait_for(lambda: not self._running)

    def _run(self) -> None:
        while True:
            units = self._next()
            if not units:
                return
            callers = 0
            try:
                self._run_units(units)
                callers = len(units)
            except BaseException as e:
                # The callers must not wait for a thread that has ended.
                for unit in units:
                    if not unit.verdicts:
                        unit.answer([Verdict(error=OutcomeUnknown(f"the committer ended: {e!r}"))] * len(unit.commands))
                raise
            finally:
                self._finished(callers)

    def _next(self) -> list[Unit]:
        """Wait for commands, then take those that are waiting, up to a chunk. Empty when the committer is closed."""
        with self._changed:
            self._gather()
            while (not self._waiting and not self._closed) or self._running >= self._max_running:
                self._changed.wait()
            if not self._waiting:
                return []
            self._running += 1
            units: list[Unit] = []
            size = 0
            while self._waiting and (not units or size + self._waiting[0].size <= self._chunk):
                units.append(self._waiting.popleft())
                size += units[-1].size
            return units

    def _gather(self) -> None:
        """Wait for the callers of the last batch, as long as they come back. Called with the lock held."""
        if not self._expected or self._gathering:
            return
        self._gathering, until, arrived = True, time.monotonic() + GATHER_S, -1
        while arrived < len(self._waiting) < self._expected and time.monotonic() < until and not self._closed:
            arrived = len(self._waiting)
            self._changed.wait(GATHER_STEP_S)
        self._gathering, self._expected = False, 0

    def _run_units(self, units: list[Unit]) -> None:
        commands = [c for u in units for c in u.commands]
        try:
            verdicts = self._run_with_retries(commands)
        except Exception as e:
            for unit in units:
                unit.answer(self._run_each(unit.commands, e))
            return
        start = 0
        for unit in units:
            end = start + len(unit.commands)
            unit.answer(verdicts[start:end])
            start = end

    def _run_each(self, commands: Sequence[Command], cause: Exception) -> list[Verdict]:
        """Run each command of a failed batch in its own transaction."""
        if isinstance(cause, Unavailable):
            return [Verdict(error=cause)] * len(commands)
        return [self._run_one(command) for command in commands]

    def _run_one(self, command: Command) -> Verdict:
        try:
            return self._run_with_retries([command])[0]
        except OnetrayError as e:
            return Verdict(error=e)
        except Exception as e:
            logger.exception("%s broke its transaction", command.verb)
            return Verdict(error=OnetrayError(f"{command.verb} could not be written: {type(e).__name__}: {e}"))

    def _run_with_retries(self, commands: Sequence[Command]) -> list[Verdict]:
        run = self._run_watched if self.watchers else self._run_batch
        return retry_transaction(lambda: run(commands), self._patience_s, lambda: self._closed)

    def _run_watched(self, commands: Sequence[Command]) -> list[Verdict]:
        began = time.perf_counter()
        verdicts = self._run_batch(commands)
        for watcher in self.watchers:
            try:
                watcher(commands, verdicts, time.perf_counter() - began)
            except Exception:
                logger.exception("a watcher of the committer failed")
        return verdicts
