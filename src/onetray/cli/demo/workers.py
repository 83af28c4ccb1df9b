"""The demo's workers: processes of their own, started by `onetray worker`, and ended however the demo ends.

Owns the processes, by their handles, and what they have written. Knows nothing about tasks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import onetray
from onetray.worker.supervisor import LEASH

APP = "onetray.examples.parcels:app"
NAMES = ("courier-1", "courier-2")
QUEUES = "default,parcels:6"
"""Parcels never take all places: the pipeline's tasks find one at once."""
STOP_S = 5.0
LAST_LINES = 15


class WorkerDied(Exception):
    """A worker has ended by itself. The message says which, and the end of its log."""


class Crew:
    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._database = folder, database
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Closes when this process ends, however it ends: then the workers stop by themselves.
        self._leash, self._hand = os.pipe()
        self.killed: set[str] = set()

    def start(self) -> None:
        # The same onetray as this one, also where it is not installed but on PYTHONPATH.
        path = os.pathsep.join([str(Path(onetray.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, LEASH: str(self._leash)}
        for name in NAMES:
            with open(self._log_of(name), "wb") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "onetray", "worker", "--app", APP, "--database", self._database,
                     "--queues", QUEUES, "--name", name, "--drain", "3", "--log-level", "warning"],
                    cwd=self._folder, env=env, pass_fds=(self._leash,),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    # Out of reach of the terminal's Ctrl-C: the demo ends them itself.
                    start_new_session=True,
                )  # fmt: skip

    def freeze(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """End one with SIGKILL: it can tell nobody. Returns when it is gone."""
        self.killed.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def check(self) -> None:
        """Raise if one is gone that was not killed."""
        for name, process in self._processes.items():
            if name not in self.killed and process.poll() is not None:
                raise WorkerDied(f"{name} has ended with {process.returncode}; its last words:\n{self.last_words()}")

    def stop(self) -> bool:
        """Ask those that are left to stop, and wait for them. Answers whether they left in order."""
        left = [process for name, process in self._processes.items() if name not in self.killed]
        for process in left:
            process.terminate()
        try:
            return all(process.wait(STOP_S) == 0 for process in left)
        except subprocess.TimeoutExpired:
            return False

    def last_words(self) -> str:
        lines: list[str] = []
        for name in self._processes:
            said = self._log_of(name).read_text(errors="replace").splitlines()
            lines += [f"  {name}: {line}" for line in said[-LAST_LINES:]]
        return "\n".join(lines) or "  (nothing)"

    def _log_of(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        os.close(self._leash)
        os.close(self._hand)
