"""Somebody who does what a page says: writes its files, types its commands, starts its workers, compares its output."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.installed import Installed

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
"""The first line of a block that is to be written into a file, and run by a command."""
POSTGRES = "postgresql://localhost/jobs"
FAILED_ATTEMPT = re.compile(r"^\S+ [0-9a-f-]{36} \(attempt \d+\) failed after .*\n", re.MULTILINE)


class Reader:
    """Reads in an empty directory, with an installed package. A PostgreSQL that the page names is another one."""

    def __init__(self, folder: Path, installed: Installed, postgres: str = POSTGRES) -> None:
        self._folder, self._python, self._postgres = folder, str(installed.python), postgres
        self._workers: list[subprocess.Popen[bytes]] = []
        self._seen = ""
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("ONETRAY_", "PYTHONPATH"))}
        self._env |= {"PATH": f"{installed.commands}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
        self._env |= installed.pip_env

    def follow(self, page: str) -> None:
        for language, block in BLOCK.findall(page):
            self.do(language, block)

    def do(self, language: str, block: str) -> None:
        if language == "text":
            self._compare(block)
        elif language == "sh" and block.startswith(("onetray worker", "onetray up")):
            self._workers.append(subprocess.Popen(shlex.split(block), cwd=self._folder, env=self._env, **NOWHERE))
        elif language == "sh":
            self._seen = self._run("sh", "-eu", "-c", block.replace(POSTGRES, self._postgres))
        elif named := FILE.match(block):
            (self._folder / named[1]).write_text(block)
        else:
            self._run(self._python, "-W", "error", "-c", block)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, without_log(done.stderr)) == (0, ""), command[-1] + done.stdout + done.stderr
        return done.stdout

    def _compare(self, expected: str) -> None:
        """The page shows what is printed; … stands for what differs each time."""
        pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
        assert re.fullmatch(pattern, self._seen.strip(), re.DOTALL), f"printed:\n{self._seen}\nshown:\n{expected}"

    def leave(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(30) for worker in self._workers] == [0] * len(self._workers)


NOWHERE = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextmanager
def reading(folder: Path, installed: Installed, postgres: str = POSTGRES) -> Iterator[Reader]:
    reader = Reader(folder, installed, postgres)
    try:
        yield reader
    finally:
        reader.leave()


def without_log(stderr: str) -> str:
    """What a program has printed besides the worker's lines about attempts that were meant to fail."""
    return FAILED_ATTEMPT.sub("", stderr)
