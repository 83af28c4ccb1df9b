"""Collect the tests of a run once, however many processes run them.

Each process of pytest-xdist would import all tests and make an item of each, which takes longer than most folders of
tests. Here one process does that, the collector, and those that run the tests are forked from it. For each of them
pytest-xdist starts a small process that lends its standard streams (lend_streams.py): it talks to the forked one.

Only on Linux: elsewhere a process that has loaded as many libraries may not be forked.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from _pytest.capture import FDCapture
from _pytest.config import _prepareconfig

LEND = Path(__file__).with_name("lend_streams.py")
COLLECT = """
import json, sys
told = json.loads(sys.argv.pop())
sys.path[:] = told.pop("path")
from tests.support.one_collection import collect
collect(**told)
"""
_collectors: list[Collector] = []
"""The collector that this process is, or was forked from."""


class OneCollection:
    """In the process that the run was started as: starts the collector, and tells pytest-xdist how to get workers."""

    def __init__(self) -> None:
        self._to_close = ExitStack()
        self._has_collector = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Comes before that of pytest-xdist, which starts the workers."""
        option = session.config.option
        if sys.platform == "linux" and option.tx and {*option.tx} == {"popen"}:
            words = [sys.executable, "-I", "-S", str(LEND), self._start_collector(session.config)]
            option.tx = [f"popen//python={shlex.join(words)}"] * len(option.tx)
            self._has_collector = True

    def _start_collector(self, config: pytest.Config) -> str:
        """Start it. Returns the socket at which it takes streams, and gives a worker for them."""
        address = f"{self._to_close.enter_context(tempfile.TemporaryDirectory(prefix='onetray-collector-'))}/socket"
        alive, ends = os.pipe()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            args = [str(word) for word in config.invocation_params.args]
            told = {"path": sys.path, "args": args, "listening": listening.fileno(), "alive": alive}
            collector = subprocess.Popen(
                [sys.executable, "-c", COLLECT, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[listening.fileno(), alive],
            )
        os.close(alive)
        self._to_close.callback(collector.wait)
        self._to_close.callback(os.close, ends)
        return address

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> Any:
        from tests.support import worker_program

        return worker_program if self._has_collector else None

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._to_close.close()


def collect(args: list[str], listening: int, alive: int) -> None:
    """The collector's program, and that of the workers that are forked from it."""
    collector = Collector(socket.socket(fileno=listening), alive)
    _collectors.append(collector)
    config: Any = _prepareconfig(args, [collector])
    import xdist.remote  # Not before pytest has seen to the assertions of its plugins.

    xdist.remote.setup_config(config, None)
    config.workerinput, config.workeroutput = {"workerid": "collector"}, {}
    config.hook.pytest_cmdline_main(config=config)
    collector.has_ended.set()


class Collector:
    """A plugin of a session that collects tests and forks instead of running them: the copies run them."""

    def __init__(self, listening: socket.socket, alive: int) -> None:
        self._listening, self._alive, self._began = listening, alive, time.monotonic()
        self._failed: list[pytest.CollectReport] = []
        self._workers: dict[int, tuple[int, socket.socket]] = {}
        """By a descriptor that tells of its end: the id of a worker, and the connection to who has lent its streams."""
        self.channels: SimpleQueue[Any] = SimpleQueue()
        self.has_ended = threading.Event()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._failed.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        assert len(os.listdir("/proc/self/task")) == 1, "a module starts a thread when it is imported: it cannot fork"
        from tests.support.cpu_report import tree_cpu_s
        from tests.support.forked_worker import become_worker

        spent = tree_cpu_s(), time.monotonic() - self._began
        streams = self._fork_until_asked_to_end()
        channel = self._serve(session.config, streams)
        worker = become_worker(session, channel, spent)
        for report in self._failed:
            worker.pytest_collectreport(report)
        worker.pytest_collection_finish(session)
        return worker.pytest_runtestloop(session)

    def _fork_until_asked_to_end(self) -> list[int]:
        """Returns in each worker that is forked, with the streams that were lent to it."""
        while True:
            lenders = {lender.fileno(): end for end, (_, lender) in self._workers.items()}
            ready, _, _ = select.select([self._listening, self._alive, *self._workers, *lenders], [], [])
            if self._alive in ready:
                os._exit(0)
            for end in self._workers.keys() & ready:
                self._put_away(end)
            for lender in lenders.keys() & ready:
                if lenders[lender] in self._workers:
                    # It was killed, but meant was the worker that it stands for.
                    signal.pidfd_send_signal(lenders[lender], signal.SIGKILL)
            if self._listening in ready and (streams := self._fork()):
                return streams

    def _put_away(self, end: int) -> None:
        pid, lender = self._workers.pop(end)
        os.waitpid(pid, 0)
        lender.close()
        os.close(end)

    def _fork(self) -> list[int] | None:
        lender, _ = self._listening.accept()
        _, streams, _, _ = socket.recv_fds(lender, 1, 3)
        pid = os.fork()
        if pid:
            self._workers[os.pidfd_open(pid)] = pid, lender
            for stream in streams:
                os.close(stream)
            return None
        for end, (_, other) in self._workers.items():
            os.close(end)
            other.close()
        lender.close()
        self._listening.close()
        os.close(self._alive)
        return streams

    def _serve(self, config: pytest.Config, streams: list[int]) -> Any:
        """Let execnet use the streams as it uses those of a new process. Returns its channel to pytest-xdist."""
        capture: Any = config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture(in_=True)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _have_own_files(capture)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        threading.Thread(target=self._listen, name="execnet").start()
        channel = self.channels.get()
        if channel is None:
            os._exit(1)
        return channel

    def _listen(self) -> None:
        try:
            exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        finally:
            self.channels.put(None)


def _have_own_files(capture: Any) -> None:
    """Capture output in other files than the collector. It stays open: some modules keep what was sys.stderr then."""
    captured = capture._global_capturing
    for part in (captured.out, captured.err) if captured else ():
        if isinstance(part, FDCapture):
            with tempfile.TemporaryFile() as own:
                os.dup2(own.fileno(), part.tmpfile.fileno(), inheritable=False)


def hand_over(channel: Any) -> None:
    """Give the channel to the main thread of a worker, and wait until it needs it no more."""
    (collector,) = _collectors
    collector.channels.put(channel)
    collector.has_ended.wait()
