"""Programs that start in a tenth of the usual time: forked from a process that has imported what they need.

`PreparedProcess("onetray", "serve", …)` runs what `python -m onetray serve …` runs, and has the methods of `Popen` that
tests need. Whatever depends on how an interpreter starts needs `Popen`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support import fleet


class PreparedProcess:
    """A module that runs as a program in a process of its own, its output going to files if that is said."""

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Path | None = None,
        stderr: Path | None = None,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        self._process = fleet.start(_run_redirected, words, environment, cwd or Path.cwd(), stdout, stderr)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # It has ended just now.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_redirected(
    words: tuple[str, ...], env: dict[str, str], cwd: Path, stdout: Path | None, stderr: Path | None
) -> None:
    _redirect(0, Path(os.devnull), os.O_RDONLY)
    for number, path in ((1, stdout), (2, stderr)):
        if path is not None:
            _redirect(number, path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run_program(words, env, cwd)


def run_program(words: tuple[str, ...], env: dict[str, str], cwd: Path) -> None:
    """Run a module as a program in this process, which was forked for it; or what follows `-c`."""
    # Under nohup it would be ignored, and with the tests the programs that they start.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # It may have children of its own.
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = list(words)
    try:
        if words[0] == "-c":
            del sys.argv[1]
            exec(words[1], {"__name__": "__main__"})
        else:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()


def _redirect(number: int, path: Path, mode: int) -> None:
    file = os.open(path, mode, 0o600)
    os.dup2(file, number)
    os.close(file)
