"""How a worker stops: by one signal or two, alone or under a supervisor, and when it is stopped against its will."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onetray import Onetray
from tests.support import workload
from tests.support.fleet import wait_until
from tests.support.workers import READY, EmbeddedWorker, Traces, WorkerProcess, is_alive, workers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_handlers_end_and_gives_back_what_has_not_begun(
    app: Onetray, traces: Traces, tmp_path: Path, number: signal.Signals
) -> None:
    with workers(app.database, tmp_path, 1, "--concurrency", "2") as (worker,):
        jobs = [workload.doze.submit(**traces.asked) for _ in range(2)]
        wait_until(lambda: len(traces.rows()) == 2)
        assert [w.name for w in app.engine.workers()]
        worker.send(number)
        wait_until(lambda: [w.state for w in app.engine.workers()] == ["stopping"])
        late = workload.nap.submit(0)
        traces.let_go()
        assert worker.end() == 0
        assert "has stopped" in worker.log
    assert [job.state for job in jobs] == ["succeeded"] * 2
    assert late.state == "queued"
    assert app.engine.workers() == []


def test_past_the_drain_handlers_are_told_to_stop_and_their_tasks_cost_no_attempt(
    app: Onetray, traces: Traces, tmp_path: Path
) -> None:
    with workers(app.database, tmp_path, 1, "--drain", "0.2") as (worker,):
        jobs = [task.submit(**traces.asked) for task in (workload.doze, workload.alone, workload.deaf)]
        nap = workload.nap.submit(60)
        wait_until(lambda: len(traces.rows()) == 3 and nap.state != "queued")
        worker.send(signal.SIGTERM)
        assert worker.end() == 0
        assert "released while the handler still runs: deaf" in worker.log
    for job in [*jobs, nap]:
        view = app.engine.task(job.id)
        assert (view.state, view.attempts) == ("queued", 0), (view, worker.log)
    assert app.engine.workers() == []
    child, helper = next(row[3:] for row in traces.rows() if len(row) == 5)
    wait_until(lambda: not is_alive(child) and not is_alive(helper))


def test_a_second_signal_stops_at_once(app: Onetray, traces: Traces, tmp_path: Path) -> None:
    with workers(app.database, tmp_path, 1, "--drain", "600") as (worker,):
        job = workload.deaf.submit(**traces.asked)
        wait_until(traces.rows)
        worker.send(signal.SIGTERM)
        wait_until(lambda: [w.state for w in app.engine.workers()] == ["stopping"])
        worker.send(signal.SIGTERM)
        assert worker.end() == 0
    view = app.engine.task(job.id)
    assert (view.state, view.attempts) == ("queued", 0)


def test_a_worker_that_was_stopped_whole_finds_its_task_with_another_and_its_report_refused(
    app: Onetray, traces: Traces, tmp_path: Path
) -> None:
    with workers(app.database, tmp_path, 1, "--concurrency", "1") as (first,):
        job = workload.deaf.submit(**traces.asked)
        wait_until(traces.rows)
        wait_until(lambda: job.state == "running")
        first.send(signal.SIGSTOP)
        second = WorkerProcess(app.database, tmp_path / "second.log")
        try:
            app.engine.expire_leases(now=app.engine.store.now() + 3600 * 1_000_000)
            wait_until(lambda: len(traces.rows()) == 2)
            traces.let_go()
            assert job.result(60) == 2
            first.send(signal.SIGCONT)
            # Its handler ends at once: before the worker has looked at the clock, or after.
            wait_until(lambda: "was refused" in first.log or "is dropped" in first.log)
        finally:
            second.kill()
    types = [event.type for event in job.events()]
    assert types.count("task.succeeded") == 1
    assert [row[2] for row in traces.rows()] == [1, 2]


@contextmanager
def embedded(app: Onetray, folder: Path, how: str) -> Iterator[EmbeddedWorker]:
    program = EmbeddedWorker(app.database, folder / "program.log", how)
    try:
        program.until_logged(READY)
        yield program
    finally:
        program.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_a_worker_that_a_program_runs_by_itself(
    app: Onetray, traces: Traces, tmp_path: Path, number: signal.Signals
) -> None:
    with embedded(app, tmp_path, "plain") as program:
        job = workload.doze.submit(**traces.asked)
        wait_until(traces.rows)
        program.send(number)
        wait_until(lambda: [w.state for w in app.engine.workers()] == ["stopping"])
        traces.let_go()
        assert program.end() == 0, program.log
        assert program.log.endswith("restored\n"), program.log
    assert job.state == "succeeded"
    assert app.engine.workers() == []


def test_a_second_signal_stops_a_worker_that_a_program_runs_at_once(
    app: Onetray, traces: Traces, tmp_path: Path
) -> None:
    with embedded(app, tmp_path, "plain") as program:
        job = workload.deaf.submit(**traces.asked)
        wait_until(traces.rows)
        program.send(signal.SIGTERM)
        wait_until(lambda: [w.state for w in app.engine.workers()] == ["stopping"])
        program.send(signal.SIGINT)
        assert program.end() == 0, program.log
    view = app.engine.task(job.id)
    assert (view.state, view.attempts) == ("queued", 0)


def test_a_program_keeps_the_signal_handlers_that_it_has(app: Onetray, tmp_path: Path) -> None:
    with embedded(app, tmp_path, "own-handler") as program:
        program.send(signal.SIGTERM)
        assert program.end() == 0, program.log
        assert program.log.count("the program's own handler") == 1
        assert program.log.endswith("restored\n"), program.log


def test_a_worker_outside_the_main_thread_leaves_signals_alone(app: Onetray, tmp_path: Path) -> None:
    with embedded(app, tmp_path, "thread") as program:
        program.send(signal.SIGUSR1)
        assert program.end() == 0, program.log
        assert program.log.endswith("unchanged\nrestored\n"), program.log


class Supervised:
    """A supervisor with three worker processes."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        worker.until_logged(READY, 3)

    def pids(self) -> list[int]:
        words = [line.split("worker process ")[1].split()[0] for line in self.worker.log.splitlines()
                 if "worker process " in line and line.endswith("has started")]  # fmt: skip
        return [int(pid) for pid in words]

    def alive(self) -> list[int]:
        return [pid for pid in self.pids() if is_alive(pid)]


@pytest.fixture
def supervised(app: Onetray, tmp_path: Path) -> Iterator[Supervised]:
    worker = WorkerProcess(
        app.database, tmp_path / "supervisor.log", "--processes", "3", "--name", "w", "--drain", "30"
    )
    under: Supervised | None = None
    try:
        under = Supervised(worker)
        yield under
    finally:
        worker.kill()
        for pid in under.alive() if under else []:
            os.kill(pid, signal.SIGKILL)


def test_a_supervisor_replaces_what_was_killed_and_stops_all_of_them_with_itself(
    app: Onetray, traces: Traces, supervised: Supervised
) -> None:
    assert sorted(w.name for w in app.engine.workers()) == ["w-1", "w-2", "w-3"]
    os.kill(supervised.pids()[0], signal.SIGKILL)
    supervised.worker.until_logged(READY, 4)
    assert "has ended: killed by SIGKILL" in supervised.worker.log
    jobs = [workload.doze.submit(**traces.asked) for _ in range(3)]
    wait_until(lambda: len(traces.rows()) == 3)
    # As a terminal does it: Ctrl-C goes to the supervisor, whose processes must not count it twice.
    supervised.worker.send(signal.SIGINT)
    wait_until(lambda: all(w.state == "stopping" for w in app.engine.workers()))
    traces.let_go()
    assert supervised.worker.end() == 0
    assert [job.state for job in jobs] == ["succeeded"] * 3
    assert supervised.alive() == []
    assert [w for w in app.engine.workers() if w.alive and w.state != "running"] == []


def test_workers_whose_supervisor_was_killed_stop_by_themselves(
    app: Onetray, traces: Traces, supervised: Supervised
) -> None:
    job = workload.doze.submit(**traces.asked)
    wait_until(traces.rows)
    supervised.worker.kill()
    wait_until(lambda: len(supervised.alive()) == 1)
    traces.let_go()
    wait_until(lambda: supervised.alive() == [])
    assert job.state == "succeeded"
    assert supervised.worker.log.count("the supervisor has ended") == 3
    assert app.engine.workers() == []
