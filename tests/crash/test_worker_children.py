"""Handlers in processes of their own: they die, overrun, and give what cannot be kept, and harm nobody else."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onetray import Onetray
from onetray.worker import Worker, process_pool, process_reaper
from tests.support import fleet, workload
from tests.support.fleet import wait_until
from tests.support.workers import APP, Traces, WorkerProcess, bytes_read, has_unread, is_alive, stop, workers

DEATHS = {
    "kill": "died: killed by SIGKILL",
    "exit": "died: exit code 7",
    "segfault": "died: killed by SIGSEGV",
    "real-time signal": "died: killed by signal 40",
    "without its reaper": "died: its parent process, the reaper, was lost: killed by SIGKILL",
    "closed descriptors": "was ended: it had closed the pipe to its worker",
    "closed descriptors, with a fork": "died: exit code 1",
    "garbage": "was ended: it wrote an invalid message into the pipe to its worker",
    'garbage: {"sequence": 1, "log": 5}': "was ended: it wrote an invalid message into the pipe to its worker",
}


def test_a_handler_that_dies_spends_an_attempt_and_its_neighbours_lose_nothing(
    app: Onetray, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onetray.worker")
    neighbours = [task.submit(**traces.asked) for task in (workload.doze, workload.alone)]
    with Worker(app, path=APP):
        wait_until(lambda: len(traces.rows()) == 2)
        jobs = {how: workload.die.options(max_attempts=1 + (how == "kill")).submit(how) for how in DEATHS}
        for how, job in jobs.items():
            assert job.wait(60) == "dead_lettered", how
            error = job.view().error
            assert error["class"] == "ProcessDied"
            assert error["message"].startswith(f"the process that ran it {DEATHS[how]}")
        assert jobs["kill"].view().attempts == 2
        job = workload.die.options(max_attempts=1).submit("sys.exit")
        assert job.wait(60) == "dead_lettered"
        assert job.view().error["class"] == "SystemExit"
        traces.let_go()
        assert [job.result(20) for job in neighbours] == [1, 1]
    lines = [line for line in caplog.messages if "the process that ran it" in line]
    assert len(lines) == len(DEATHS) + 1, "one for each attempt"


def test_a_cancel_kills_a_handler_in_a_process_with_what_it_has_started(app: Onetray, traces: Traces) -> None:
    jobs = [workload.alone.submit(**traces.asked) for _ in range(2)]
    with Worker(app, path=APP):
        wait_until(lambda: len(traces.rows()) == 2)
        jobs[0].cancel()
        jobs[1].cancel(hard=True)
        assert [job.wait(20) for job in jobs] == ["cancelled"] * 2
        pids = [pid for row in traces.rows() for pid in row[3:]]
        wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_timeout_kills_a_handler_in_a_process_with_what_it_has_started(app: Onetray, traces: Traces) -> None:
    with Worker(app, path=APP, concurrency=1):
        # Its process may take longer to start than it has time.
        workload.here.submit(f"{traces.ledger}-ready").result(60)
        while not traces.rows():
            assert workload.overrun.submit(traces.ledger, "fork").wait(20) in ("dead_lettered", "failed")
        wait_until(lambda: nothing_runs(traces))


HELPERS = ("fork", "shell", "pool", "session", "fork in a session", "daemon")


def nothing_runs(traces: Traces) -> bool:
    """Whether the processes of all handlers have ended, and all that they have started."""
    return not any(is_alive(pid) for row in traces.rows() for pid in row[3:])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a session of its own is not ended: see docs/worker.md")
def test_the_death_of_a_handlers_process_is_noticed_and_ends_what_it_has_started(app: Onetray, traces: Traces) -> None:
    jobs = [workload.leave_behind.submit(helper, **traces.asked) for helper in HELPERS]
    jobs.append(workload.leave_behind.submit("fork", **traces.asked, how="exit"))
    with Worker(app, path=APP):
        assert [job.wait(60) for job in jobs] == ["dead_lettered"] * len(jobs)
        ended = [job.view().error["message"] for job in jobs]
        assert ended[0] == "the process that ran it died: killed by SIGKILL"
        assert ended[-1] == "the process that ran it died: exit code 0"
        assert nothing_runs(traces)


def test_without_a_subreaper_the_death_is_noticed_and_the_process_group_is_ended(
    app: Onetray, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: somebody else holds a copy of the pipe, and goes on."""
    elsewhere = (
        f"import runpy, sys; sys.platform = 'darwin'; runpy.run_path({process_reaper.__file__!r}, run_name='__main__')"
    )
    monkeypatch.setattr(process_pool, "REAPER", (sys.executable, "-I", "-S", "-c", elsewhere))
    jobs = [workload.leave_behind.submit(helper, **traces.asked) for helper in ("fork", "fork in a session")]
    with Worker(app, path=APP):
        assert [job.wait(60) for job in jobs] == ["dead_lettered"] * 2
    pids = {row[1]: row[3:] for row in traces.rows()}
    try:
        assert not any(is_alive(pid) for pid in pids[jobs[0].id])
        assert [is_alive(pid) for pid in pids[jobs[1].id]] == [False, True]
    finally:
        os.kill(pids[jobs[1].id][1], signal.SIGKILL)


def test_what_a_successful_handler_has_left_running_ends_with_its_process(app: Onetray, traces: Traces) -> None:
    with Worker(app, path=APP, concurrency=1):
        for helper in ("fork", "shell"):
            assert workload.leave_behind.submit(helper, **traces.asked, how="return").result(60) == helper
        (first, helper), (second, _) = (row[3:] for row in traces.rows())
        assert first == second
        assert is_alive(helper)
    assert nothing_runs(traces)


def test_a_report_that_was_written_before_the_death_counts(app: Onetray, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = process_pool.ProcessHandle.receive

    def receive_late(child: process_pool.ProcessHandle) -> Any:
        assert child.has_ended(60)
        return receive(child)

    monkeypatch.setattr(process_pool.ProcessHandle, "receive", receive_late)
    with Worker(app, path=APP):
        assert workload.report_and_die.submit().result(60) == "reported"


def test_a_fork_or_a_thread_that_a_handler_has_left_does_not_speak_for_an_attempt(app: Onetray, traces: Traces) -> None:
    with Worker(app, path=APP, concurrency=1):
        first = workload.come_back_twice.submit()
        assert first.result(60) == "the fork's exit code was 0"
        workload.leave_a_thread.submit(traces.ledger, traces.ledger).result(60)
        last = workload.leave_behind.submit("fork", **traces.asked, how="wait")
        wait_until(lambda: traces.rows("refused"))
        traces.let_go()
        assert last.result(60) == "fork"
        assert [*first.logs(), *last.logs()] == []


def test_a_worker_that_is_killed_takes_its_processes_with_it(app: Onetray, traces: Traces, tmp_path: Path) -> None:
    with workers(app.database, tmp_path) as (worker,):
        job = workload.alone.submit(**traces.asked)
        wait_until(traces.rows)
        worker.send(signal.SIGKILL)
        _, _, _, child, helper = traces.rows()[0]
        wait_until(lambda: not is_alive(child) and not is_alive(helper))
    assert job.state in ("assigned", "running")


def stop_between_transactions(worker: WorkerProcess, app: Onetray) -> None:
    """Stop it while it holds no lock on the database: nobody else could write until it goes on."""
    while True:
        worker.send(signal.SIGSTOP)
        written = threading.Event()
        threading.Thread(
            target=lambda done=written: (app.engine.store.write(lambda tx: None), done.set()), daemon=True
        ).start()
        if written.wait(5):
            return
        worker.send(signal.SIGCONT)
        assert written.wait(60)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_order_that_a_process_reads_when_the_lease_is_over_begins_no_handler(
    app: Onetray, traces: Traces, tmp_path: Path, how: signal.Signals
) -> None:
    with workers(app.database, tmp_path, 1, "--concurrency", "1") as (worker,):
        workload.here_longer.submit(traces.ledger).result(60)
        _, _, _, child, reaper = traces.rows()[0]
        stopped = {child, reaper} - {worker.pid}
        for pid in stopped:
            stop(pid)
        job = workload.here_longer.submit(traces.ledger)
        # The worker sends the order after the start is committed: stopped in between, it would send none.
        wait_until(lambda: job.state == "running" and has_unread(child))
        if how == signal.SIGSTOP:
            stop_between_transactions(worker, app)
        else:
            worker.send(how)
        second = WorkerProcess(app.database, tmp_path / "second.log")
        try:
            assert job.wait(60) == "succeeded"
            read = bytes_read(child)
            os.kill(child, signal.SIGCONT)
            wait_until(lambda: bytes_read(child) > read or not is_alive(child))
            worker.send(signal.SIGCONT)
            # A worker that was stopped answers its process, or has noticed before that the lease is over.
            gone = ("is lost", "is not started", "was refused")
            wait_until(lambda: not is_alive(child) or any(words in worker.log for words in gone))
        finally:
            second.kill()
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(child))
    assert job.id in [row[1] for row in traces.rows() if row[3] != child]
    assert job.id not in [row[1] for row in traces.rows() if row[3] == child]


def test_an_order_that_a_process_reads_late_begins_its_handler_if_the_lease_was_renewed(
    app: Onetray, traces: Traces
) -> None:
    with Worker(app, path=APP, concurrency=1):
        workload.here.submit(traces.ledger).result(60)
        child = traces.rows()[0][3]
        stop(child)
        try:
            job = workload.here.submit(traces.ledger)
            wait_until(lambda: job.state == "running")
            first = job.view().lease_expires_at
            wait_until(lambda: job.view().lease_expires_at > first + 1.1e6 * workload.QUICK["lease_s"])
        finally:
            os.kill(child, signal.SIGCONT)
        assert job.wait(60) == "succeeded"
    begun = [(row[1], row[2]) for row in traces.rows()]
    assert len(begun) == len(set(begun))


def test_deaths_leave_no_descriptor_and_no_zombie_and_may_be_asked_for_by_several_at_once() -> None:
    # In a process of its own: threads of other tests may open and close descriptors meanwhile.
    ((before, after),) = fleet.run_all(descriptors_around_deaths, [(20,)], 120)
    assert after == before


def descriptors_around_deaths(deaths: int) -> tuple[list[str], list[str]]:
    """The descriptors of this process before and after children of it were killed, each by several threads at once."""
    process_pool.ProcessHandle(APP, {}).end()
    before = sorted(os.listdir("/dev/fd"))
    for _ in range(deaths):
        child = process_pool.ProcessHandle(APP, {})
        killers = [threading.Thread(target=child.kill, args=(child.begin(),)), threading.Thread(target=child.kill)]
        for killer in killers:
            killer.start()
        assert child.end() == "killed by SIGKILL"
        for killer in killers:
            killer.join()
        child.kill()
        with pytest.raises(ChildProcessError):
            os.waitpid(child.process.pid, os.WNOHANG)
    return before, sorted(os.listdir("/dev/fd"))


def test_who_is_late_to_stop_an_attempt_does_not_kill_the_next_one_in_the_same_process(app: Onetray) -> None:
    child = process_pool.ProcessHandle(APP, {})
    first = child.begin()
    assert child.finish()
    child.begin()
    child.kill(first)
    assert child.finish()
    child.kill(child.begin())
    assert not child.finish()
    assert child.end() == "killed by SIGKILL"


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


def test_handlers_in_processes_may_print_though_the_worker_has_no_standard_streams(
    app: Onetray, tmp_path: Path
) -> None:
    closed = ("sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-')
    worker = WorkerProcess(app.database, tmp_path / "worker.log", under=closed)
    try:
        assert workload.talk.submit().result(60) == "done"
        worker.send(signal.SIGTERM)
        assert worker.end() == 0
    finally:
        worker.kill()


def test_a_task_for_a_process_in_a_worker_that_has_no_path_to_its_app_says_what_is_missing(app: Onetray) -> None:
    job = workload.give.submit("NaN")
    with Worker(app):
        assert job.wait(20) == "failed"
    assert "onetray worker --app module:app" in job.view().error["message"]


def test_a_process_that_could_not_be_killed_is_reported_as_such() -> None:
    child = process_pool.ProcessHandle.__new__(process_pool.ProcessHandle)
    child._exit = b" 1\n"
    assert child._describe_exit(0) == "killed, but did not exit"
