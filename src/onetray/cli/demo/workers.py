"""The demo's worker processes, started by `onetray worker`, and stopped however the demo ends.

Owns the processes and their logs. Knows nothing about tasks.
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
"""The limit on parcels leaves places for the pipeline's tasks."""
STOP_S = 5.0
LOG_LINES = 15


class WorkerDied(Exception):
    """A worker has exited by itself. The message has its name and the end of its log."""


class DemoWorkers:
    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._database = folder, database
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # The write end closes when this process dies in any way; the workers notice and stop.
        self._leash, self._write_end = os.pipe()
        self.killed: set[str] = set()

    def start(self) -> None:
        # The workers must import the same onetray as this process, even if it is not installed.
        path = os.pathsep.join([str(Path(onetray.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, LEASH: str(self._leash)}
        for name in NAMES:
            with open(self._log_file(name), "wb") as log:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "onetray", "worker", "--app", APP, "--database", self._database,
                     "--queues", QUEUES, "--name", name, "--drain", "3", "--log-level", "warning"],
                    cwd=self._folder, env=env, pass_fds=(self._leash,),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    # The terminal's Ctrl-C must not reach them: the demo stops them itself.
                    start_new_session=True,
                )  # fmt: skip

    def freeze(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kill a worker with SIGKILL and wait for its exit."""
        self.killed.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def check(self) -> None:
        """Raise WorkerDied if a worker that was not killed has exited."""
        for name, process in self._processes.items():
            if name not in self.killed and process.poll() is not None:
                raise WorkerDied(f"{name} exited with {process.returncode}; the end of the logs:\n{self.log_tails()}")

    def stop(self) -> bool:
        """Stop the remaining workers and wait for them. Returns whether all exited with 0."""
        running = [process for name, process in self._processes.items() if name not in self.killed]
        for process in running:
            process.terminate()
        try:
            return all(process.wait(STOP_S) == 0 for process in running)
        except subprocess.TimeoutExpired:
            return False

    def log_tails(self) -> str:
        lines: list[str] = []
        for name in self._processes:
            log = self._log_file(name).read_text(errors="replace").splitlines()
            lines += [f"  {name}: {line}" for line in log[-LOG_LINES:]]
        return "\n".join(lines) or "  (empty)"

    def _log_file(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def __enter__(self) -> DemoWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        os.close(self._leash)
        os.close(self._write_end)
