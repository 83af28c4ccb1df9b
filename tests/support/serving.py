"""Real `onetray serve` and `onetray up` processes for tests: on a free port, watched by their log, signalled, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import onetray
from tests.support.fleet import wait_until
from tests.support.prepared import PreparedProcess

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """One server, whose log goes to a file."""

    def __init__(
        self, folder: Path, *words: str, name: str = "server", files: int | None = None, **settings: str
    ) -> None:
        package = Path(onetray.__file__).parents[1]
        path = os.pathsep.join([str(package), str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ONETRAY_")}
        environment |= {f"ONETRAY_{name.upper()}": value for name, value in settings.items()}
        self._log, self._said = folder / f"{name}.log", folder / f"{name}.out"
        environment["PYTHONPATH"] = path
        self._log.touch()
        self._said.write_bytes(b"")
        program = ["onetray", *words, "--port", "0"]
        self.process = (
            PreparedProcess(*program, cwd=folder, env=environment, stdout=self._said, stderr=self._log)
            if files is None
            else self._limited(program, folder, environment, files)
        )

    def _limited(
        self, program: list[str], folder: Path, environment: dict[str, str], files: int
    ) -> subprocess.Popen[bytes]:
        # What `ulimit -n` sets, for this process alone.
        limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m"]
        with self._log.open("ab") as log, self._said.open("ab") as said:
            return subprocess.Popen(
                [*limited, *program], cwd=folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=said, stderr=log,
            )  # fmt: skip

    def until_ready(self) -> None:
        wait_until(lambda: self.said.endswith("\n") or self.process.poll() is not None, 120)
        assert self.said, self.log

    @property
    def url(self) -> str:
        return self.said.split()[3].rstrip(";")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def until_logged(self, words: str) -> None:
        wait_until(lambda: words in self.log or self.process.poll() is not None, 60)
        assert words in self.log, self.log

    def end(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@contextmanager
def serving_all(
    folder: Path, names: Sequence[str], *words: str, files: int | None = None, **settings: str
) -> Iterator[list[ServerProcess]]:
    """Servers that are ready; killed at the end if they still run. Each may open so many files, if that is said."""
    started = [ServerProcess(folder, *words, name=name, files=files, **settings) for name in names]
    try:
        for server in started:
            server.until_ready()
        yield started
    finally:
        for server in started:
            server.kill()


@contextmanager
def serving(folder: Path, *words: str, files: int | None = None, **settings: str) -> Iterator[ServerProcess]:
    """The same, one of them."""
    with serving_all(folder, ["server"], *words, files=files, **settings) as (server,):
        yield server
