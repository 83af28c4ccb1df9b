"""The processes of one side on one database: started, told what to do, heard, and stopped.

Owns those processes and the file in which they speak: a pipe would wake this process for each job of a busy worker.
What they say is in sides/.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import NoReturn, Self

from benchmarks.catalogue import Side
from benchmarks.sides import BEGAN, LEFT, SUBMITTED

ROOT = Path(__file__).parents[1]
MEMORY = Path("/dev/shm")
PATIENCE_S = 30.0
MANY_S = 600.0
"""How long the submits of many jobs may take: nothing is said before the last."""
LOOK_S = 0.002


class Stage:
    """One side at work: all its roles at once, or those that are asked for."""

    def __init__(
        self, side: Side, url: str, roles: tuple[str, ...] | None = None, mode: dict[str, str] | None = None
    ) -> None:
        self._side, self._url = side, url
        self._environment = {**os.environ, **(mode or {})}
        self._roles = side.roles if roles is None else roles
        where = MEMORY if MEMORY.is_dir() else None
        self._said = TemporaryFile("ab+", buffering=0, dir=where)  # noqa: SIM115
        self._log = TemporaryFile()  # noqa: SIM115
        self._read, self._rest = 0, b""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._answers: list[tuple[str, int, int]] = []
        self._began: dict[int, int] = {}
        self.begun: list[int] = []
        """When handlers began, in nanoseconds, in the order in which they said so."""

    def __enter__(self) -> Self:
        try:
            self._set_up()
            for role in self._roles:
                self.start(role)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def _set_up(self) -> None:
        process = self._spawn("set_up")
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code != 0:
            self._fail("could not be set up")

    def start(self, role: str) -> None:
        self._processes[role] = self._spawn(role)

    @property
    def worker(self) -> int:
        """The process id of the worker."""
        return (self._processes.get("work") or self._processes["both"]).pid

    def pickup_s(self, number: int) -> float:
        """Submit a job, wait until its handler has begun, and answer how long that took."""
        _, at = self.ask(str(number), SUBMITTED)
        self._until(lambda: number in self._began)
        return (self._began[number] - at) / 1e9

    def ask(self, line: str, answer: str | None = None) -> tuple[int, int]:
        """Tell the submitter a line, and wait for the number and the nanoseconds that it answers."""
        submitter = (self._processes.get("submit") or self._processes["both"]).stdin
        assert submitter is not None
        self._answers.clear()
        submitter.write(f"{line}\n".encode())
        submitter.flush()
        self._until(lambda: bool(self._answers), MANY_S)
        what, number, ns = self._answers.pop()
        if what != (answer or line.split()[0]):
            self._fail(f"said {what} when told {line}")
        return number, ns

    def until_begun(self, count: int) -> None:
        """Wait until so many handlers have begun."""
        self._until(lambda: len(self.begun) >= count)

    def until_none_left(self) -> int:
        """Wait until the submitter finds no job that is not done, and answer when that was, in nanoseconds."""
        give_up_at = time.monotonic() + PATIENCE_S
        while (answer := self.ask(LEFT))[0]:
            if time.monotonic() > give_up_at:
                self._fail(f"did not finish {answer[0]} jobs that had begun")
            time.sleep(LOOK_S)
        return answer[1]

    def _until(self, true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Listen until something is true, as long as anything is said."""
        give_up_at = time.monotonic() + patience_s
        while not true():
            if self._listen():
                give_up_at = time.monotonic() + patience_s
                continue
            if any(process.poll() is not None for process in self._processes.values()):
                self._fail("ended too soon")
            if time.monotonic() > give_up_at:
                self._fail("said nothing for too long")
            time.sleep(LOOK_S)

    def _listen(self) -> bool:
        """Take in what was said since the last time; False when nothing was."""
        heard = os.pread(self._said.fileno(), 1 << 20, self._read)
        self._read += len(heard)
        *lines, self._rest = (self._rest + heard).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace").split())
        return bool(heard)

    def _take(self, words: list[str]) -> None:
        match words:
            case [what, number, ns] if number.lstrip("-").isdigit() and ns.isdigit():
                if what == BEGAN:
                    self.begun.append(int(ns))
                    self._began[int(number)] = int(ns)
                else:
                    self._answers.append((what, int(number), int(ns)))
            case _:
                pass  # A peer that greets.

    def _spawn(self, role: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._side.command(self._side.program), role, self._url],
            cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=self._said, stderr=self._log,
        )  # fmt: skip

    def _fail(self, why: str) -> NoReturn:
        self._log.seek(0)
        raise SideFailed(f"{self._side.program} {why}\n{self._log.read()[-4000:].decode(errors='replace')}")

    def _stop(self) -> None:
        # The worker last: the end of a submitter must not be an error of a database that is going.
        for _, process in sorted(self._processes.items()):
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._said.close()
        self._log.close()


class SideFailed(RuntimeError):
    """A side did not do what it was told. The message carries the end of what it wrote to its standard error."""
