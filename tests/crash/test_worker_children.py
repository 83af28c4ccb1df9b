"""Handlers in processes of their own: they die, overrun, and give what cannot be kept, and harm nobody else."""

from __future__ import annotations

import signal
from pathlib import Path

from onetray import Onetray
from onetray.worker import Worker
from tests.support import workload
from tests.support.fleet import wait_until
from tests.support.workers import APP, Traces, is_alive, workers


def test_a_handler_that_dies_spends_an_attempt_and_its_neighbours_lose_nothing(app: Onetray, traces: Traces) -> None:
    neighbours = [task.submit(**traces.asked) for task in (workload.doze, workload.alone)]
    with Worker(app, path=APP):
        wait_until(lambda: len(traces.rows()) == 2)
        ways = {
            "kill": "killed by SIGKILL",
            "exit": "exit code 7",
            "segfault": "killed by SIGSEGV",
            "real-time signal": "killed by signal 40",
        }
        jobs = {how: workload.die.options(max_attempts=1 + (how == "kill")).submit(how) for how in ways}
        for how, job in jobs.items():
            assert job.wait(30) == "dead_lettered"
            error = job.view().error
            assert (error["class"], error["message"]) == ("ProcessDied", f"the process that ran it died: {ways[how]}")
        assert jobs["kill"].view().attempts == 2
        traces.let_go()
        assert [job.result(20) for job in neighbours] == [1, 1]


def test_a_cancel_kills_a_handler_in_a_process_with_what_it_has_started(app: Onetray, traces: Traces) -> None:
    jobs = [workload.alone.submit(**traces.asked) for _ in range(2)]
    with Worker(app, path=APP):
        wait_until(lambda: len(traces.rows()) == 2)
        jobs[0].cancel()
        jobs[1].cancel(hard=True)
        assert [job.wait(20) for job in jobs] == ["cancelled"] * 2
        pids = [pid for row in traces.rows() for pid in row[3:]]
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_timeout_kills_a_handler_in_a_process(app: Onetray, traces: Traces) -> None:
    job = workload.overrun.submit(traces.ledger)
    with Worker(app, path=APP):
        assert job.wait(20) in ("dead_lettered", "failed")
        wait_until(lambda: all(not is_alive(row[3]) for row in traces.rows()))


def test_a_worker_that_is_killed_takes_its_processes_with_it(app: Onetray, traces: Traces, tmp_path: Path) -> None:
    with workers(app.database, tmp_path) as (worker,):
        job = workload.alone.submit(**traces.asked)
        wait_until(traces.rows)
        worker.send(signal.SIGKILL)
        _, _, _, child, helper = traces.rows()[0]
        wait_until(lambda: not is_alive(child) and not is_alive(helper))
    assert job.state in ("assigned", "running")


def test_a_result_from_a_process_that_cannot_be_kept_is_a_failure_and_no_death(app: Onetray) -> None:
    jobs = [workload.give.submit(what) for what in ("large", "NaN", "number", "surrogate")]
    with Worker(app, path=APP, concurrency=1):
        assert [job.wait(30) for job in jobs] == ["failed"] * 4
    assert {job.view().error["stage"] for job in jobs} == {"output"}


def test_a_handler_in_a_process_speaks_through_its_worker_and_submits_to_its_workers_database(app: Onetray) -> None:
    job = workload.speak.submit()
    with Worker(app, path=APP):
        assert job.result(20) == "{'at': 1}"
        assert [line.line for line in job.logs()] == ["odd"]
        (child,) = [task for task in app.engine.tasks() if task.kind == "nap"]
        assert app.job(child.id).wait(20) == "succeeded"


def test_a_task_for_a_process_in_a_worker_that_has_no_path_to_its_app_says_what_is_missing(app: Onetray) -> None:
    job = workload.give.submit("NaN")
    with Worker(app):
        assert job.wait(20) == "failed"
    assert "onetray worker --app module:app" in job.view().error["message"]
