"""Several worker processes on one machine: started, started again when they die, stopped together.

Owns the processes, by their ids. Each is a whole worker: what one takes down with it, the others take over.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onetray.worker.process_pool import how_it_ended

logger = logging.getLogger("onetray.worker")

LONGEST_WAIT_S = 30.0
STEADY_S = 10.0
"""A process that lived for so long is started again at once."""
GRACE_S = 20.0


LEASH = "ONETRAY_LEASH"
"""Tells a worker process the number of a pipe that closes when its supervisor is gone."""


class ProcessSlot:
    """One of the processes, whichever it is at the moment."""

    def __init__(self, command: list[str], leash: int) -> None:
        self._command, self._leash = command, leash
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
            self._put_off(now, f"worker process {self.process.pid} has ended: {how_it_ended(code)}")
            self.process = None
        if now >= self._next_at:
            self._started_at = now
            self._start(now)

    def _start(self, now: float) -> None:
        try:
            self.process = subprocess.Popen(
                self._command,
                env={**os.environ, LEASH: str(self._leash)},
                pass_fds=(self._leash,),
                # Ctrl-C reaches the supervisor alone: told by both, a process would take it for a second signal.
                start_new_session=True,
            )
            logger.info("worker process %d has started", self.process.pid)
        except OSError as e:
            self._put_off(now, f"a worker process could not be started: {e}")

    def _put_off(self, now: float, why: str) -> None:
        self._wait_s = 0.5 if now - self._started_at > STEADY_S else min(2 * self._wait_s, LONGEST_WAIT_S)
        self._next_at = now + self._wait_s
        logger.error("%s; the next one starts in %g s", why, self._wait_s)


class Supervisor:
    def __init__(self, commands: Sequence[list[str]], drain_s: float) -> None:
        # Nothing is ever written to it: it closes when this process ends, however it ends.
        leash, self._hand = os.pipe()
        self._places = [ProcessSlot(command, leash) for command in commands]
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
        # Once for the handlers, once for the reports of what they did.
        until, told = time.monotonic() + 2 * self._drain_s + GRACE_S, 1
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


def on_leash(ask_to_stop: Callable[[], None]) -> None:
    """In a worker process: stop when the supervisor is gone, so that none is left behind that nobody knows of."""
    number = os.environ.pop(LEASH, "")
    if number:
        threading.Thread(target=_follow, args=(int(number), ask_to_stop), name="onetray-leash", daemon=True).start()


def _follow(leash: int, ask_to_stop: Callable[[], None]) -> None:
    os.set_inheritable(leash, False)
    os.read(leash, 1)
    logger.error("the supervisor is gone: this worker stops")
    ask_to_stop()


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
"""What Python itself has set. Whatever else is set, also to ignore a signal, is somebody's choice."""


@contextmanager
def stop_on_signals(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """Have signals ask for a stop, where the program leaves them to Python. Only a main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        ask_to_stop()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS if signal.getsignal(number) in DEFAULTS}
    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)
