"""Turn calls that arrive at the same time into one transaction (group commit).

Owns the threads that write. A caller that is alone writes for itself; those that come meanwhile are gathered, and
each gets its own verdicts. A unit that breaks a batch is carried out alone, so that it harms nobody. When a batch is
run again is said in store/retry_transaction.py.
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

Work = Callable[[Sequence[Command]], list[Verdict]]
Watcher = Callable[[Sequence[Command], list[Verdict], float], object]
"""Is told of each batch: the commands, their verdicts, and how many seconds it took."""


class Carrier(Protocol):
    """Whatever carries out an engine's commands: the committer, or one who sends them to a server."""

    def carry_out(self, commands: Sequence[Command]) -> list[Verdict]: ...

    def must_not_have_forked(self) -> None: ...

    def close(self) -> None: ...


class Unit:
    """One caller's commands, and a latch that opens when they are answered."""

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
    def __init__(self, work: Work, threads: int, chunk: int, patience_s: float, name: str) -> None:
        self._work, self._chunk, self._patience_s = work, chunk, patience_s
        self._most = threads
        self._waiting: deque[Unit] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._working = 0
        self._process = os.getpid()
        self.watchers: list[Watcher] = []
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def carry_out(self, commands: Sequence[Command]) -> list[Verdict]:
        """Hand over commands and wait for their verdicts."""
        self.must_not_have_forked()
        unit = Unit(commands)
        with self._ready:
            if self._closed:
                # As any verdict: those of earlier parts of the same call must not be lost.
                return [Verdict(error=Unavailable("the engine is closed")) for _ in commands]
            alone = not self._waiting and self._working < self._most
            if alone:
                self._working += 1
            else:
                self._waiting.append(unit)
                self._ready.notify()
        if alone:
            # Nobody to share a transaction with: to hand it to another thread would only take time.
            try:
                self._together([unit])
            finally:
                self._worked()
        unit.done.acquire()
        return unit.verdicts

    def _worked(self) -> None:
        with self._ready:
            self._working -= 1
            if self._waiting or self._closed:
                self._ready.notify_all()

    def must_not_have_forked(self) -> None:
        """A forked child has the connections and not the threads: it would wait for ever, and harm its parent's."""
        if os.getpid() != self._process:
            raise StoreError("this engine was opened before a fork: open one in each process, or spawn instead")

    def close(self) -> None:
        """Finish what was handed over, then stop."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        with self._ready:
            # What callers carry out themselves.
            self._ready.wait_for(lambda: not self._working)

    def _run(self) -> None:
        while True:
            units = self._next()
            if not units:
                return
            try:
                self._together(units)
            except BaseException as e:
                # Whatever ends this thread must not leave its callers waiting.
                for unit in units:
                    if not unit.verdicts:
                        unit.answer([Verdict(error=OutcomeUnknown(f"the committer ended: {e!r}"))] * len(unit.commands))
                raise
            finally:
                self._worked()

    def _next(self) -> list[Unit]:
        """Wait for work, then take what has gathered, up to a chunk."""
        with self._ready:
            while (not self._waiting and not self._closed) or self._working >= self._most:
                self._ready.wait()
            if not self._waiting:
                return []
            self._working += 1
            units: list[Unit] = []
            size = 0
            while self._waiting and (not units or size + self._waiting[0].size <= self._chunk):
                units.append(self._waiting.popleft())
                size += units[-1].size
            return units

    def _together(self, units: list[Unit]) -> None:
        commands = units[0].commands if len(units) == 1 else [c for u in units for c in u.commands]
        try:
            verdicts = self._patiently(commands)
        except Exception as e:
            for unit in units:
                unit.answer(self._alone(unit.commands, e))
            return
        start = 0
        for unit in units:
            end = start + len(unit.commands)
            unit.answer(verdicts[start:end])
            start = end

    def _alone(self, commands: Sequence[Command], cause: Exception) -> list[Verdict]:
        """The batch was rolled back: find out which command breaks, and let the others pass."""
        if isinstance(cause, Unavailable):
            return [Verdict(error=cause)] * len(commands)
        return [self._single(command) for command in commands]

    def _single(self, command: Command) -> Verdict:
        try:
            return self._patiently([command])[0]
        except OnetrayError as e:
            return Verdict(error=e)
        except Exception as e:
            logger.exception("%s broke its transaction", command.verb)
            return Verdict(error=OnetrayError(f"{command.verb} could not be written: {type(e).__name__}: {e}"))

    def _patiently(self, commands: Sequence[Command]) -> list[Verdict]:
        work = self._watched if self.watchers else self._work
        return retry_transaction(lambda: work(commands), self._patience_s, lambda: self._closed)

    def _watched(self, commands: Sequence[Command]) -> list[Verdict]:
        began = time.perf_counter()
        verdicts = self._work(commands)
        for watcher in self.watchers:
            try:
                watcher(commands, verdicts, time.perf_counter() - began)
            except Exception:
                logger.exception("a watcher of the committer failed")
        return verdicts
