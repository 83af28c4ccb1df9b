"""The processes of one side on one database: started, told to submit, heard, and stopped.

Owns those processes and the pipe on which they speak. What they say is in sides/.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

from benchmarks import peers
from benchmarks.sides import BEGAN, SUBMITTED

ROOT = Path(__file__).parents[1]
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Side:
    """Something to measure: a program, the database it runs on, and who works in which process."""

    program: str
    store: str
    python: Callable[[], str] = lambda: sys.executable
    roles: tuple[str, ...] = ("work", "submit")


OURS = {
    "sqlite_same_process": Side("ours", "sqlite", roles=("both",)),
    "sqlite": Side("ours", "sqlite"),
    "postgres": Side("ours", "postgres"),
}
PEERS = {
    "procrastinate": Side("procrastinate", "postgres", peers.python),
    "pgqueuer": Side("pgqueuer", "postgres", peers.python),
}
SIDES = {**OURS, **PEERS}


class Stage:
    """One side at work. The last of its processes is the one that is told the numbers."""

    def __init__(self, side: Side, url: str) -> None:
        self._side, self._url = side, url
        self._log = TemporaryFile()  # noqa: SIM115
        self._ear, self._mouth = os.pipe()
        self._heard = b""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            if self._start("set_up").wait(PATIENCE_S) != 0:
                self._fail("could not be set up")
            self._processes = [self._start(role) for role in self._side.roles]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    @property
    def worker(self) -> int:
        """The process id of the worker."""
        return self._processes[0].pid

    def pickup_s(self, number: int) -> float:
        """Submit a job, wait until its handler has begun, and answer how long that took."""
        submitter = self._processes[-1].stdin
        assert submitter is not None
        submitter.write(f"{number}\n".encode())
        submitter.flush()
        at: dict[str, int] = {}
        until = time.monotonic() + PATIENCE_S
        while len(at) < 2:
            what, of, ns = self._next_line(until).split()
            if int(of) == number:
                at[what] = int(ns)
        return (at[BEGAN] - at[SUBMITTED]) / 1e9

    def _next_line(self, until: float) -> str:
        while b"\n" not in self._heard:
            if not select.select([self._ear], [], [], max(0.0, until - time.monotonic()))[0]:
                self._fail("said nothing for too long")
            self._heard += os.read(self._ear, 65536)
        line, self._heard = self._heard.split(b"\n", 1)
        return line.decode()

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._side.python(), "-m", f"benchmarks.sides.{self._side.program}", role, self._url],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=self._mouth, stderr=self._log,
        )  # fmt: skip

    def _fail(self, why: str) -> None:
        self._log.seek(0)
        raise RuntimeError(f"{self._side.program} {why}\n{self._log.read()[-4000:].decode(errors='replace')}")

    def _stop(self) -> None:
        # The submitter first: its end must not be an error of a database that is going.
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self._ear)
        os.close(self._mouth)
        self._log.close()
