"""Several worker processes on one machine: started, started again when they die, stopped together.

Owns the processes, by their ids. Each is a whole worker: what one takes down with it, the others take over.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable

logger = logging.getLogger("onetray.worker")

LONGEST_WAIT_S = 30.0
STEADY_S = 10.0
"""A process that lived for so long is started again at once."""
GRACE_S = 10.0


class Place:
    """One of the processes, whichever it is at the moment."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._wait_s = 0.5
        self._next_at = 0.0

    def keep_alive(self) -> None:
        """Start it if it is not there, and not before its time."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._wait_s = 0.5 if now - self._started_at > STEADY_S else min(2 * self._wait_s, LONGEST_WAIT_S)
            self._next_at = now + self._wait_s
            logger.error("worker process %d %s; the next one starts in %g s", self.process.pid, how, self._wait_s)
            self.process = None
        if now >= self._next_at:
            self._started_at = now
            self.process = subprocess.Popen(self._command)
            logger.info("worker process %d has started", self.process.pid)


class Supervisor:
    def __init__(self, command: list[str], processes: int, drain_s: float) -> None:
        self._places = [Place(command) for _ in range(processes)]
        self._drain_s = drain_s
        self._asked = 0

    def ask_to_stop(self) -> None:
        """Stop gracefully; asked a second time, at once. Safe in a signal handler."""
        self._asked += 1

    def run(self) -> None:
        """Keep all of them alive until a stop is asked for."""
        while not self._asked:
            for place in self._places:
                place.keep_alive()
            time.sleep(0.1)
        self._tell(lambda process: process.terminate())
        until, told = time.monotonic() + self._drain_s + GRACE_S, 1
        while any(p.process is not None and p.process.poll() is None for p in self._places):
            if self._asked > told:
                told = self._asked
                self._tell(lambda process: process.terminate())
            if time.monotonic() > until:
                logger.error("killed: worker processes that did not stop in time")
                self._tell(lambda process: process.kill())
            time.sleep(0.1)

    def _tell(self, what: Callable[[subprocess.Popen[bytes]], None]) -> None:
        for place in self._places:
            if place.process is not None and place.process.poll() is None:
                what(place.process)
