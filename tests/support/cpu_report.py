"""How much processor time each test file takes: `./go test --cpu-report`.

Counts this process and everything below it: PostgreSQL, servers and workers that the tests start. Wall time says how
long a file waits, too. Every test by itself is in .cache/cpu-report.jsonl: name, processor time, wall time.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.schedule import save_durations

DETAILS = Path(__file__).parents[2] / ".cache/cpu-report.jsonl"
SHOWN = 40
Usage = tuple[str, float, float]
"""The name of a test, its processor time, its wall time."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuReport:
    """In the process that prints: gathers what each process of the run has measured."""

    def __init__(self, config: pytest.Config) -> None:
        self._usage: list[Usage] = []
        if config.getoption("dist", "no") == "no":
            config.pluginmanager.register(Meter(self._usage))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._usage += map(tuple, getattr(node, "workeroutput", {}).get("cpu_usage", []))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("processor time by file")
        for line in table(self._usage):
            terminalreporter.line(line)
        DETAILS.parent.mkdir(exist_ok=True)
        if terminalreporter.config.getoption("--save-durations"):
            save_durations(self._usage)
        DETAILS.write_text("".join(json.dumps(usage) + "\n" for usage in self._usage))


class Meter:
    """In each process that runs tests: measures every test, with what was made for it and put away after it."""

    def __init__(self, usage: list[Usage]) -> None:
        self._usage = usage
        self._last = (time.monotonic(), tree_cpu_s())

    def begin_again(self, spent: tuple[float, float] | None) -> None:
        """After a fork. One of the processes is told what was spent before: processor time, wall time."""
        self._usage[:] = [("(between tests)", *spent)] if spent else []
        self._last = (time.monotonic(), tree_cpu_s())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._add("(between tests)")
        result = yield
        self._add(item.nodeid.split("@")[0])
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._add("(between tests)")
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["cpu_usage"] = self._usage

    def _add(self, name: str) -> None:
        wall, cpu = time.monotonic(), tree_cpu_s()
        self._usage.append((name, round(cpu - self._last[1], 3), round(wall - self._last[0], 3)))
        self._last = (wall, cpu)


def tree_cpu_s() -> float:
    """Seconds of processor time of this process, its descendants, and those of them that have ended."""
    below, ticks = [str(os.getpid())], 0
    for pid in below:
        with suppress(OSError):  # It has just ended.
            ticks += sum(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:15]))
            for thread in os.listdir(f"/proc/{pid}/task"):
                below += _read(f"/proc/{pid}/task/{thread}/children").decode().split()
    return ticks / TICKS_PER_S


def _read(path: str) -> bytes:
    # A test is measured twice: half of the time of a small one would go into reading files as text.
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)


def table(usage: list[Usage]) -> list[str]:
    """The files that took most, and what all of them took."""
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for name, cpu, wall in usage:
        for total in (files[name.split("::")[0]], files["total"]):
            total[0] += cpu
            total[1] += wall
            total[2] += "::" in name
    most = sorted(files.items(), key=lambda entry: -entry[1][0])[:SHOWN]
    return [
        "  cpu s  wall s  tests",
        *(f"{cpu:7.1f} {wall:7.1f} {tests:6d}  {name}" for name, (cpu, wall, tests) in most),
    ]
