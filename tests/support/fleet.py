"""Start real processes for tests, wait for them with a limit, and bring home what they found.

A process with a database connection is never forked: the copy would corrupt what it shares. These are forked from a
server process that has imported what they need and opened nothing, which takes a thirtieth of the time of a new one.
The server keeps the environment in which the first of them was started.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support.waits import wait_until as wait_until

_PREPARED = multiprocessing.get_context("forkserver")
_PREPARED.set_forkserver_preload(
    [
        "jsonschema",
        "onetray.cli.completion",
        "onetray.cli.demo",
        "onetray.cli.jobs",
        "onetray.cli.serve",
        "onetray.cli.worker",
        "onetray.dashboard.route",
        "onetray.dialects.jobnik.routes",
        "onetray.dialects.pipeline.routes",
        "onetray.dialects.so1.routes",
        "onetray.examples.parcels",
        "onetray.http.app",
        "onetray.http.server",
        "onetray.mcp.route",
        "onetray.mcp.transports",
        "onetray.store.postgres",
        "onetray.store.sqlite",
        "onetray.worker.supervisor",
        "pytest",
        "uvicorn.lifespan.on",
        "tests.mcp.agents",
        "tests.support.dying_processes",
        "tests.support.engines",
        "tests.support.flow_kills",
        "tests.support.journal",
        "tests.support.sqlite_processes",
        "tests.support.prepared",
        "tests.support.lock_contention",
        "tests.support.last_task_races",
        "tests.support.claim_load",
        "tests.support.version_12",
        "tests.support.frozen",
    ]
)


class FleetFailed(AssertionError):
    """A process ended in another way than it should, or not at all."""


def start(target: Callable[..., None], *args: Any) -> BaseProcess:
    process = _PREPARED.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def run_all(target: Callable[..., Any], argses: Sequence[Sequence[Any]], timeout_s: float) -> list[Any]:
    """Run the target once for each tuple of arguments, each in its own process; answer what they returned."""
    with tempfile.TemporaryDirectory(prefix="onetray-fleet-") as folder:
        answers = [Path(folder) / str(i) for i in range(len(argses))]
        fleet = [start(_answer, str(path), target, *args) for path, args in zip(answers, argses, strict=True)]
        end_all(fleet, timeout_s)
        return [json.loads(path.read_text()) for path in answers]


def _answer(path: str, target: Callable[..., Any], *args: Any) -> None:
    with open(path, "w") as answer:  # Before the target gives up the right to.
        answer.write(json.dumps(target(*args)))


def end_all(fleet: Sequence[BaseProcess], timeout_s: float, exitcode: int = 0) -> None:
    """Wait until all have ended as they should. Those that have not by then are killed, and the test fails."""
    give_up_at = time.monotonic() + timeout_s
    for process in fleet:
        process.join(max(0.0, give_up_at - time.monotonic()))
    late = [p for p in fleet if p.exitcode is None]
    for process in late:
        process.kill()
        process.join()
    wrong = [p.exitcode for p in fleet if p.exitcode != exitcode]
    if late or wrong:
        raise FleetFailed(f"{len(late)} of {len(fleet)} processes did not end in {timeout_s} s; exit codes: {wrong}")


class Ledger:
    """Acknowledgements that outlive the process that got them: one line each, appended before the next step."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *facts: Any) -> None:
        # What write(2) took survives a SIGKILL; one call for a line keeps lines of several processes whole.
        os.write(self._file, json.dumps(facts).encode() + b"\n")

    @staticmethod
    def read(path: str | Path) -> list[list[Any]]:
        return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []
