"""The tutorial is true: its files are written, its commands typed, its output compared, in their order.

One test, because each block builds on those before it. It takes seconds: it starts what the reader starts.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
POSTGRES = "postgresql://localhost/jobs"


class Reader:
    """Somebody who does what the page says, in an empty directory."""

    def __init__(self, folder: Path, postgres: str) -> None:
        self._folder, self._postgres = folder, postgres
        self._workers: list[subprocess.Popen[bytes]] = []
        self._seen = ""
        commands = str(Path(sys.executable).parent)
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("ONETRAY_")}
        self._env |= {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}

    def do(self, language: str, block: str) -> None:
        if language == "text":
            self._compare(block)
        elif language == "sh" and block.startswith("onetray worker"):
            self._workers.append(subprocess.Popen(block.split(), cwd=self._folder, env=self._env, **NOWHERE))
        elif language == "sh":
            self._seen = self._run("sh", "-eu", "-c", block.replace(POSTGRES, self._postgres))
        elif named := FILE.match(block):
            (self._folder / named[1]).write_text(block)
        else:
            self._run(sys.executable, "-W", "error", "-c", block)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._env, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), command[-1] + done.stdout + done.stderr
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
def reading(folder: Path, postgres: str) -> Iterator[Reader]:
    reader = Reader(folder, postgres)
    try:
        yield reader
    finally:
        reader.leave()


def test_the_tutorial_works_as_it_is_written(tmp_path: Path, pg_url: str) -> None:
    blocks = BLOCK.findall(PAGE)
    assert {"python", "sh", "text"} == {language for language, _ in blocks}
    with reading(tmp_path, pg_url) as reader:
        for language, block in blocks:
            reader.do(language, block)
