"""Calls with many tasks in real processes: killed, and in child processes that die."""

from __future__ import annotations

from pathlib import Path

from onetray import Onetray
from onetray.worker import Worker
from tests.support import workload
from tests.support.engines import engine_on
from tests.support.fleet import wait_until
from tests.support.workers import APP, Traces, workers


def test_the_tasks_of_a_killed_call_are_retried_by_another_worker(
    database_url: str, traces: Traces, tmp_path: Path
) -> None:
    with engine_on(database_url) as engine:
        engine.declare(workload.app.policies)
        ids = [str(engine.submit("bundle", traces.asked, policy=workload.bundle.policy).id) for _ in range(6)]
        with workers(database_url, tmp_path, 2, "--concurrency", "1") as both:
            wait_until(lambda: len(traces.rows()) == 2)
            wait_until(lambda: {engine.task(id_).state for id_ in ids} == {"running"})
            assert sorted(id_ for row in traces.rows() for id_ in row[2:]) == sorted(ids)
            lost, kept = traces.rows()
            victim = next(worker for worker in both if worker.pid == lost[1])
            victim.kill()
            traces.let_go()
            wait_until(lambda: all(engine.task(id_).state == "succeeded" for id_ in ids))
        attempts = {id_: engine.task(id_).attempts for id_ in ids}
        assert {attempts[id_] for id_ in lost[2:]} == {2}
        assert {attempts[id_] for id_ in kept[2:]} == {1}


def test_a_call_in_a_process_of_its_own_reports_for_each_task(app: Onetray, traces: Traces) -> None:
    traces.let_go()
    jobs = [workload.bundle_alone.submit(**traces.asked) for _ in range(3)]
    with Worker(app, path=APP):
        assert [job.result(60) for job in jobs] == [1, 1, 1]
        dying = [workload.bundle_alone.options(max_attempts=1).submit(**traces.asked, how="die") for _ in range(3)]
        assert [job.wait(60) for job in dying] == ["dead_lettered"] * 3
    assert {job.view().error["class"] for job in dying} == {"ProcessDied"}
    assert [[line.data for line in job.logs()] for job in jobs] == [[{"n": n}] for n in range(3)]
    assert [app.engine.last_checkpoint(job.id) for job in dying] == [0, 1, 2]


def test_a_child_is_killed_when_all_tasks_of_its_call_are_cancelled(app: Onetray, traces: Traces) -> None:
    jobs = [workload.bundle_alone.submit(**traces.asked) for _ in range(3)]
    with Worker(app, path=APP):
        wait_until(traces.rows)
        for job in jobs:
            job.cancel()
        assert [job.wait(60) for job in jobs] == ["cancelled"] * 3
