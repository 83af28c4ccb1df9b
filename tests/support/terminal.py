"""`onetray` on a terminal of its own, which a test can close."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import onetray
from tests.support.fleet import wait_until

ROOT = Path(__file__).parents[2]
BEGIN = """
import fcntl, os, signal, sys, termios
terminal, ignored = int(sys.argv[1]), sys.argv[2] == "ignored"
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(terminal, number)
os.execv(sys.executable, [sys.executable, "-m", "onetray", *sys.argv[3:]])
"""


class Terminal:
    """The program, its terminal, and what it has printed there."""

    def __init__(self, *words: str, hangup: str = "default", cwd: Path | None = None) -> None:
        self._master, slave = os.openpty()
        path = os.pathsep.join([str(Path(onetray.__file__).parents[1]), str(ROOT)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, str(slave), hangup, *words],
            pass_fds=(slave,), start_new_session=True, env={**os.environ, "PYTHONPATH": path}, cwd=cwd,
        )  # fmt: skip
        os.close(slave)
        self.text, self._is_open = "", True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Without a read that waits: the kernel would keep the terminal open for it.
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        with suppress(OSError):
            while self._is_open:
                if poll.poll(50):
                    self.text += os.read(self._master, 4096).decode(errors="replace")

    def until_printed(self, words: str) -> None:
        wait_until(lambda: words in self.text or self.process.poll() is not None)
        assert words in self.text, self.text

    def close(self) -> None:
        """As when its window is closed: the kernel sends SIGHUP, and every later write fails."""
        if self._is_open:
            self._is_open = False
            self._reader.join(60)
            os.close(self._master)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(60)


@contextmanager
def on_terminal(*words: str, hangup: str = "default") -> Iterator[Terminal]:
    terminal = Terminal(*words, hangup=hangup)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait(60)
        terminal.close()
