"""Real workers: `onetray worker` in processes of its own, with handlers that do nothing.

Owns those processes, and the work that is laid out for them. Queues are paused until all workers are there, so that
none has a head start; times are those of the database's own log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO

from benchmarks.core import must_pass
from benchmarks.environments import ROOT
from onetray.domain.commands import Submit
from onetray.domain.lifecycle import TASK
from onetray.engine import Engine
from onetray.worker.supervisor import LEASH

CONCURRENCY = 500
KIND = "noop"
PATIENCE_S = 60.0
"""How long nothing may happen before a measurement is given up."""
LOOK_S = 0.1
_CHUNK = 1_000
_SPAN = "SELECT (SELECT min(ts) FROM onetray.event WHERE type = '{}'), (SELECT max(finished_at) FROM onetray.task)"


class WorkerFailed(RuntimeError):
    """A worker did not do its work. The message carries the end of its log."""


def lay_out(engine: Engine, lengths: Mapping[str, int]) -> None:
    """Fill queues that nothing can be claimed from yet."""
    for queue, length in lengths.items():
        engine.pause_queue(queue)
        for first in range(0, length, _CHUNK):
            numbers = range(first, min(first + _CHUNK, length))
            must_pass(engine, [Submit(kind=KIND, payload={"number": n}, queue=queue) for n in numbers])


def let_go(engine: Engine, queues: Mapping[str, int]) -> None:
    for queue in queues:
        engine.resume_queue(queue)


def until_ended(engine: Engine, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until every task has ended, as long as some do."""
    left, give_up_at = -1, 0.0
    while now_left := _left(engine):
        if now_left != left:
            left, give_up_at = now_left, time.monotonic() + PATIENCE_S
        if time.monotonic() > give_up_at or any(process.poll() is not None for process in processes):
            raise WorkerFailed(f"{left} tasks were not finished")
        time.sleep(LOOK_S)


def seconds_of_work(engine: Engine) -> float:
    """From the first claim to the last end, by the database's clock."""
    first, last = engine.store.read_sql(_SPAN.format(TASK.claim.event))[0]
    return float(last - first) / 1e6


@contextmanager
def fleet(
    engine: Engine, url: str, count: int = 1, queues: Mapping[str, int] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many workers that serve the same queues, all of them ready. They are stopped in order at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    with TemporaryFile() as log, _leash() as leash:
        try:
            for n in range(count):
                processes.append(_start(url, f"w{n + 1}", ",".join(queues or ["default"]), log, leash))
            _until(lambda: len(engine.workers()) >= count, processes)
            yield processes
        except WorkerFailed as e:
            raise WorkerFailed(f"{e}\n{_tail(log)}") from e
        finally:
            codes = _stop(processes)
        if any(codes):
            raise WorkerFailed(f"workers ended with {codes}\n{_tail(log)}")


@contextmanager
def _leash() -> Iterator[int]:
    """A pipe that closes with this process, however it ends: no worker outlives it."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def command(url: str, name: str, queues: str) -> list[str]:
    """What starts a worker."""
    words = [sys.executable, "-m", "onetray", "worker", "--app", "benchmarks.noop:app", "--database", url]
    return [*words, "--name", name, "--queues", queues, "--concurrency", str(CONCURRENCY), "--log-level", "warning"]


def _start(url: str, name: str, queues: str, log: IO[bytes], leash: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, LEASH: str(leash)}
    return subprocess.Popen(command(url, name, queues), env=environment, pass_fds=(leash,), stdout=log, stderr=log)


def _stop(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    return [_ended(process) for process in processes]


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _until(true: Callable[[], bool], processes: list[subprocess.Popen[bytes]]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not true():
        if any(process.poll() is not None for process in processes) or time.monotonic() > give_up_at:
            raise WorkerFailed("a worker did not start")
        time.sleep(0.02)


def _left(engine: Engine) -> int:
    """Tasks that have not ended. While some wait they are counted there: a look must not read all that is done."""
    for sql in ("SELECT count(*) FROM onetray.ready", "SELECT count(*) FROM onetray.task WHERE finished_at IS NULL"):
        if left := int(engine.store.read_sql(sql)[0][0]):
            return left
    return 0


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read()[-4000:].decode(errors="replace")
