"""SIGHUP, a closed terminal, and a reader of the output that goes away: they cost no task and no attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import onetray
from onetray import Onetray
from tests.support import workload
from tests.support.fleet import wait_until
from tests.support.serving import serving
from tests.support.terminal import ROOT, on_terminal
from tests.support.workers import APP, READY, Traces, workers


def _stopping(app: Onetray) -> bool:
    return [w.state for w in app.engine.workers()] == ["stopping"]


def test_a_second_hangup_does_not_hurry(app: Onetray, traces: Traces, tmp_path: Path) -> None:
    with workers(app.database, tmp_path, 1, "--drain", "600") as (worker,):
        patient = workload.doze.submit(**traces.asked)
        wait_until(traces.rows)
        worker.send(signal.SIGHUP)
        wait_until(lambda: _stopping(app))
        for _ in range(3):
            worker.send(signal.SIGHUP)
        traces.let_go()
        assert worker.end() == 0
    assert patient.state == "succeeded"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_a_hangup_stops_at_once(
    app: Onetray, traces: Traces, tmp_path: Path, number: signal.Signals
) -> None:
    with workers(app.database, tmp_path, 1, "--drain", "600") as (worker,):
        job = workload.deaf.submit(**traces.asked)
        wait_until(traces.rows)
        worker.send(signal.SIGHUP)
        wait_until(lambda: _stopping(app))
        worker.send(number)
        assert worker.end() == 0
    view = app.engine.task(job.id)
    assert (view.state, view.attempts) == ("queued", 0)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_up_drains_at_the_first_signal_and_gives_back_at_the_second(
    app: Onetray, traces: Traces, tmp_path: Path, first: signal.Signals
) -> None:
    with serving(tmp_path, "up", "--app", APP, "--database", app.database, "--drain", "600") as server:
        job = workload.deaf.submit(**traces.asked)
        wait_until(traces.rows)
        server.send(first)
        wait_until(lambda: _stopping(app))
        assert job.state == "running"
        server.send(signal.SIGTERM)
        assert server.end() == 0, server.log
    view = app.engine.task(job.id)
    assert (view.state, view.attempts) == ("queued", 0)


def test_a_hangup_stops_a_server_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, "serve", "--database", "sqlite:///jobs.db") as server:
        server.send(signal.SIGHUP)
        assert server.end() == 0
    assert "the server has stopped" in server.log
    assert "Traceback" not in server.log


@pytest.mark.parametrize("command", ["worker", "up"])
def test_a_closed_terminal_lets_handlers_end(app: Onetray, traces: Traces, command: str) -> None:
    words = [command, "--app", APP, "--database", app.database, *(["--port", "0"] if command == "up" else [])]
    with on_terminal(*words) as terminal:
        terminal.until_printed(READY)
        job = workload.print_when.submit(**traces.asked)
        wait_until(traces.rows)
        terminal.close()
        wait_until(lambda: _stopping(app))
        traces.let_go()
        assert terminal.end() == 0
    assert job.result(60) == "done"
    assert job.view().attempts == 1
    assert app.engine.workers() == []


def test_workers_under_a_supervisor_outlive_their_terminal(app: Onetray, traces: Traces) -> None:
    with on_terminal("worker", "--app", APP, "--database", app.database, "--processes", "2") as terminal:
        wait_until(lambda: terminal.text.count(READY) == 2)
        job = workload.print_when.submit(**traces.asked)
        wait_until(traces.rows)
        terminal.close()
        wait_until(lambda: {w.state for w in app.engine.workers()} == {"stopping"})
        traces.let_go()
        assert terminal.end() == 0
    assert job.result(60) == "done"
    assert app.engine.workers() == []


def test_a_server_on_a_closed_terminal_ends_in_order(tmp_path: Path) -> None:
    with on_terminal("serve", "--database", f"sqlite:///{tmp_path / 'jobs.db'}", "--port", "0") as terminal:
        terminal.until_printed("listens on")
        terminal.close()
        assert terminal.end() == 0


def test_a_worker_that_ignores_hangups_goes_on_without_its_terminal(app: Onetray, traces: Traces) -> None:
    """As under nohup, or in a shell that has disowned it."""
    words = ["worker", "--app", APP, "--database", app.database]
    with on_terminal(*words, hangup="ignored") as terminal:
        terminal.until_printed(READY)
        terminal.close()
        traces.let_go()
        jobs = [workload.print_when.submit(**traces.asked), workload.talk.submit()]
        assert [job.result(60) for job in jobs] == ["done"] * 2
        assert terminal.process.poll() is None
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 0


@contextmanager
def piped(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(Path(onetray.__file__).parents[1]), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", "onetray", *words], env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def test_a_worker_goes_on_when_the_reader_of_its_output_has_gone(app: Onetray, traces: Traces) -> None:
    """As in `onetray worker … 2>&1 | head -1`."""
    with piped("worker", "--app", APP, "--database", app.database) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        wait_until(lambda: app.engine.workers())
        traces.let_go()
        # The handler in a process of its own inherits the pipe, too.
        jobs = [task.submit(**traces.asked) for task in [workload.print_when] * 3] + [workload.talk.submit()]
        assert [job.result(60) for job in jobs] == ["done"] * 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
