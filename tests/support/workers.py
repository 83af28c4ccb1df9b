"""Real `onetray worker` processes for tests: started, watched by their log, signalled, killed; none is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onetray
from tests.support.fleet import Ledger, wait_until
from tests.support.prepared import PreparedProcess

APP = "tests.support.workload:app"
ROOT = Path(__file__).parents[2]
READY = "claims from"


class WorkerProcess:
    """One `onetray worker`, whose log goes to a file."""

    def __init__(
        self, url: str, log: Path, *options: str, under: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.url, self.log_file = url, log
        package = Path(onetray.__file__).parents[1]
        path = os.pathsep.join([str(package), str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
        log.touch()
        self.process = (
            _run_under(under, self.program(url, options), environment, log)
            if under
            else PreparedProcess(*self.program(url, options), env=environment, stdout=log, stderr=log)
        )

    def program(self, url: str, options: Sequence[str]) -> list[str]:
        return ["onetray", "worker", "--app", APP, "--database", url, *options]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def until_logged(self, words: str, times: int = 1, timeout_s: float = 60.0) -> None:
        wait_until(lambda: self.log.count(words) >= times or self.process.poll() is not None, timeout_s)
        assert self.log.count(words) >= times, self.log

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait for its end; answers its exit code."""
        return self.process.wait(timeout_s)


def _run_under(
    under: Sequence[str], program: Sequence[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Run the program by another one, such as `nice`."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [*under, sys.executable, "-m", *program],
            env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip


class EmbeddedWorker(WorkerProcess):
    """A program of its own that runs a worker of the same app: see embedded.py."""

    def program(self, url: str, options: Sequence[str]) -> list[str]:
        return ["tests.support.embedded", url, *options]


@contextmanager
def workers(url: str, folder: Path, many: int = 1, *options: str) -> Iterator[list[WorkerProcess]]:
    """Some workers that are ready. What still runs at the end is killed."""
    started = [WorkerProcess(url, folder / f"worker-{n}.log", *options) for n in range(many)]
    try:
        for worker in started:
            worker.until_logged(READY)
        yield started
    finally:
        for worker in started:
            worker.kill()


class Traces:
    """What the handlers of workload.py have written down, and the file that lets them end."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.until = str(folder / "ledger"), str(folder / "until")

    @property
    def asked(self) -> dict[str, str]:
        return {"ledger": self.ledger, "until": self.until}

    def rows(self, word: str = "began") -> list[list[int]]:
        return [row for row in Ledger.read(self.ledger) if row[0] == word]

    def let_go(self) -> None:
        Path(self.until).touch()


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs: a zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except (ProcessLookupError, FileNotFoundError):
            return False
    asked = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip()[:1] not in ("", "Z")


def bytes_read(pid: int) -> int:
    """How much a process has read; 0 where there is no /proc."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split()[1])
    except (ProcessLookupError, FileNotFoundError):
        return 0


def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads have stopped: until then they may read what they are sent."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _has_stopped(pid))


def _has_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task")
    if not threads.exists():
        return True
    return all((t / "stat").read_text().rpartition(")")[2].split()[0] == "T" for t in threads.iterdir())


def has_unread(pid: int) -> bool:
    """Whether something lies in a pipe that this process reads from; True where there is no /proc."""
    if not Path("/proc/self/fdinfo").exists():
        return True
    return any(_unread(pid, entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir() if _is_read_end(pid, entry))


def _is_read_end(pid: int, entry: Path) -> bool:
    flags = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0]
    return os.readlink(entry).startswith("pipe:") and int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def _unread(pid: int, number: str) -> int:
    end = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(end, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(end)


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, in whole seconds where there is no /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    asked = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True)
    minutes, seconds = asked.stdout.strip().rsplit(":", 2)[-2:]
    return 60 * int(minutes) + float(seconds)
