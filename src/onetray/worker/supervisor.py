"""Run several worker processes on one machine: restart those that die, stop all together.

Each process is a complete worker: when one crashes, the others take over its tasks.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from onetray.worker.process_pool import describe_exit_code

logger = logging.getLogger("onetray.worker")

MAX_BACKOFF_S = 30.0
STABLE_AFTER_S = 10.0
"""A process that has run for this long is restarted without a growing delay."""
STOP_GRACE_S = 20.0


LEASH = "ONETRAY_LEASH"
"""Environment variable with the file descriptor of a pipe that closes when the supervisor ends."""


class ProcessSlot:
    """One worker process and its replacements."""

    def __init__(self, command: list[str], leash: int) -> None:
        self._command, self._leash = command, leash
        self.process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._backoff_s = 0.5
        self._restart_at = 0.0

    def keep_alive(self) -> None:
        """Start the process if it does not run and its restart delay is over."""
        now = time.monotonic()
        if self.process is not None:
            code = self.process.poll()
            if code is None:
                return
            self._schedule_restart(now, f"worker process {self.process.pid} has ended: {describe_exit_code(code)}")
            self.process = None
        if now >= self._restart_at:
            self._started_at = now
            self._start(now)

    def _start(self, now: float) -> None:
        try:
            self.process = subprocess.Popen(
                self._command,
                env={**os.environ, LEASH: str(self._leash)},
                pass_fds=(self._leash,),
                # Ctrl-C must reach only the supervisor: a worker would count its own and the forwarded signal as two.
                start_new_session=True,
            )
            logger.info("worker process %d has started", self.process.pid)
        except OSError as e:
            self._schedule_restart(now, f"a worker process could not be started: {e}")

    def _schedule_restart(self, now: float, reason: str) -> None:
        self._backoff_s = 0.5 if now - self._started_at > STABLE_AFTER_S else min(2 * self._backoff_s, MAX_BACKOFF_S)
        self._restart_at = now + self._backoff_s
        logger.error("%s; the next one starts in %g s", reason, self._backoff_s)


class Supervisor:
    def __init__(self, commands: Sequence[list[str]], drain_s: float) -> None:
        # Never written to: the system closes it when this process ends, for whatever reason.
        leash, self._write_end = os.pipe()
        self._slots = [ProcessSlot(command, leash) for command in commands]
        self._drain_s = drain_s
        self._stop_requests = 0

    def ask_to_stop(self) -> None:
        """Request a graceful stop; a second call requests an immediate one. Safe in a signal handler."""
        self._stop_requests += 1

    def run(self) -> None:
        """Keep all processes running until a stop is requested."""
        while not self._stop_requests:
            for slot in self._slots:
                slot.keep_alive()
            time.sleep(0.1)
        self._signal_all(lambda process: process.terminate())
        # Workers drain twice: first their handlers, then their reports.
        until, forwarded = time.monotonic() + 2 * self._drain_s + STOP_GRACE_S, 1
        while any(p.process is not None and p.process.poll() is None for p in self._slots):
            if self._stop_requests > forwarded:
                forwarded = self._stop_requests
                self._signal_all(lambda process: process.terminate())
            if time.monotonic() > until:
                logger.error("worker processes did not stop in time: killing them")
                self._signal_all(lambda process: process.kill())
            time.sleep(0.1)

    def _signal_all(self, send_signal: Callable[[subprocess.Popen[bytes]], None]) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                send_signal(slot.process)


def on_leash(ask_to_stop: Callable[[], None]) -> None:
    """Stop this worker process when its supervisor has ended, so that no orphan goes on."""
    leash = os.environ.pop(LEASH, "")
    if leash:
        args = (int(leash), ask_to_stop)
        threading.Thread(target=_watch_supervisor, args=args, name="onetray-leash", daemon=True).start()


def _watch_supervisor(leash: int, ask_to_stop: Callable[[], None]) -> None:
    os.set_inheritable(leash, False)
    os.read(leash, 1)
    logger.error("the supervisor has ended: this worker stops")
    ask_to_stop()
