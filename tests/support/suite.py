"""The test suite on a machine that is busy with something else: a process burns each core while it runs.

Owns the processes that burn, and what one run of the suite came to. `./go soak suite` runs it several times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# It looks for its parent: whatever ends that, also SIGKILL, ends it too.
BURN = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_cores(cores: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that compute for nothing. They end with this block, or with this process."""
    command = [sys.executable, "-S", "-c", BURN, str(os.getpid())]
    burning = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(cores)]
    try:
        yield burning
    finally:
        for process in burning:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class SuiteRun:
    exit_code: int
    passed: int
    failed: tuple[str, ...]
    took_s: float

    def __str__(self) -> str:
        ended = "" if self.exit_code in (0, 1) else f", pytest ended with exit code {self.exit_code}"
        return f"{self.passed:,} passed, {len(self.failed):,} failed in {self.took_s:.0f} s{ended}"


def run_suite(pytest_args: Sequence[str]) -> SuiteRun:
    """Run `./go test` once, with these arguments for pytest."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onetray-suite-") as folder:
        report = Path(folder) / "report.xml"
        code = _wait_for(["./go", "test", "-q", f"--junitxml={report}", *pytest_args])
        passed, failed = _counts(report) if report.exists() else (0, ())
    return SuiteRun(code, passed, failed, time.monotonic() - began)


def _wait_for(command: list[str]) -> int:
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            return process.wait()
        except SystemExit:
            # Asked to end: pytest is interrupted, not left behind, and puts away what its tests have started.
            process.send_signal(signal.SIGINT)
            raise


def _counts(report: Path) -> tuple[int, tuple[str, ...]]:
    """How many tests passed, and the names of those that failed or broke."""
    cases = list(xml.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = dict.fromkeys(f"{case.get('classname')}::{case.get('name')}" for case in bad)
    return len(cases) - len(bad) - len(skipped), tuple(names)
