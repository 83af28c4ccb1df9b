"""A worker that gathers tasks for one call: how many, how long, and what becomes of each when something goes wrong."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from onetray import BatchItem, Onetray
from onetray.app.job import Job
from onetray.app.tasks import TaskDefinition
from onetray.worker import Worker
from tests.support.waits import forever, wait_until

WAIT_S = 60.0
LONG_S = 3600.0
Items = list[BatchItem[dict[str, int]]]


class Calls:
    """The calls of a batch handler, each of which lasts until it may end."""

    def __init__(self, app: Onetray, isolation: str = "thread", **rules: Any) -> None:
        self.seen: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

        def on_thread(items: Items) -> list[int]:
            self.begin(items)
            assert self.go.wait(WAIT_S)
            return [2 * item.payload["n"] for item in items]

        async def on_loop(items: Items) -> list[int]:
            self.begin(items)
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            return [2 * item.payload["n"] for item in items]

        handler = on_thread if isolation == "thread" else on_loop
        self.task: TaskDefinition[..., Any] = app.task(kind="double", **rules)(handler)

    def begin(self, items: Items) -> None:
        self.seen.append([item.payload["n"] for item in items])

    def submit(self, *numbers: int) -> list[Job[Any]]:
        return [self.task.submit(n=n) for n in numbers]


def is_stopped(worker: Worker, job: Job[Any]) -> bool:
    """Whether the worker knows that a task of a running call is to stop."""
    attempts = [attempt for work in list(worker.executor.running) for attempt in work.members]
    return any(attempt.stop_reason is not None for attempt in attempts if attempt.assignment.id == job.id)


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_a_full_batch_is_one_call_and_the_rest_waits_for_its_time(either_app: Onetray, isolation: str) -> None:
    calls = Calls(either_app, isolation, batch=3, batch_s=LONG_S)
    single = either_app.task(kind="single")(lambda: "alone")
    jobs = calls.submit(*range(7))
    with either_app.worker(concurrency=2):
        wait_until(lambda: sorted(job.state for job in jobs) == ["assigned", *["succeeded"] * 6])
        assert single.submit().result(WAIT_S) == "alone"
        jobs += calls.submit(7, 8)
        assert [job.result(WAIT_S) for job in jobs] == [2 * n for n in range(9)]
    assert [len(call) for call in calls.seen] == [3, 3, 3]


def test_a_batch_that_does_not_fill_begins_when_its_time_is_over(either_app: Onetray) -> None:
    calls = Calls(either_app, batch=100, batch_s=0.05)
    with either_app.worker():
        assert [job.result(WAIT_S) for job in calls.submit(1, 2)] == [2, 4]
    assert sorted(n for call in calls.seen for n in call) == [1, 2]


def test_an_app_may_have_batches_of_several_kinds_and_queues(app: Onetray) -> None:
    @app.task(batch=2, batch_s=LONG_S, queue="one")
    async def first(items: list[dict[str, int]]) -> list[int]:
        return [item["n"] for item in items]

    @app.task(batch=2, batch_s=LONG_S)
    def second(items: list[dict[str, int]]) -> list[int]:
        return [-item["n"] for item in items]

    jobs = [task.options(queue=queue).submit(n=n) for n in (1, 2) for task in (first, second) for queue in ("one",)]
    with app.worker(queues=["one", "default"]):
        assert [job.result(WAIT_S) for job in jobs] == [1, -1, 2, -2]


def test_a_call_counts_as_one_and_nothing_is_claimed_ahead(either_app: Onetray) -> None:
    calls = Calls(either_app, batch=2, batch_s=LONG_S)
    calls.go.clear()
    jobs = calls.submit(*range(10))
    with either_app.worker(concurrency=2) as worker:
        wait_until(lambda: len(calls.seen) == 2)
        gatherer = worker._gatherers[0]
        assert (len(worker.held), len(worker.executor.running), gatherer.concurrency) == (4, 2, 0)
        calls.go.set()
        assert [job.wait(WAIT_S) for job in jobs] == ["succeeded"] * 10
    assert {len(call) for call in calls.seen} == {2}


def test_a_batch_gets_its_turn_while_other_tasks_occupy_all_slots(app: Onetray) -> None:
    calls = Calls(app, batch=2, batch_s=0.01)
    go = threading.Event()
    occupy = app.task(kind="occupy")(lambda: go.wait(WAIT_S))
    others = [occupy.submit() for _ in range(2)]
    with app.worker(concurrency=2) as worker:
        wait_until(lambda: len(worker.executor.running) == 2)
        jobs = calls.submit(1, 2)
        wait_until(lambda: len(worker.executor.waiting) == 1)
        go.set()
        assert [job.wait(WAIT_S) for job in (*jobs, *others)] == ["succeeded"] * 4


@pytest.mark.parametrize("hard", [False, True])
def test_a_cancel_of_one_task_does_not_touch_the_others(either_app: Onetray, hard: bool) -> None:
    calls = Calls(either_app, "async", batch=3, batch_s=LONG_S, cancel_grace_s=LONG_S)
    calls.go.clear()
    jobs = calls.submit(1, 2, 3)
    with either_app.worker() as worker:
        wait_until(lambda: calls.seen and jobs[1].state == "running")
        jobs[1].cancel(hard=hard)
        wait_until(lambda: is_stopped(worker, jobs[1]))
        calls.go.set()
        assert [jobs[0].result(WAIT_S), jobs[2].result(WAIT_S)] == [2, 6]
        # After a soft cancel a success still counts.
        assert jobs[1].wait(WAIT_S) == ("cancelled" if hard else "succeeded")
    assert calls.seen == [[1, 2, 3]]


def test_a_handler_is_interrupted_when_all_its_tasks_are_cancelled(app: Onetray) -> None:
    began, ended = threading.Event(), threading.Event()

    @app.task(batch=2, batch_s=LONG_S)
    async def wait(items: list[dict[str, int]]) -> None:
        began.set()
        try:
            await forever()
        finally:
            ended.set()

    jobs = [wait.submit(n=n) for n in (1, 2)]
    with app.worker() as worker:
        assert began.wait(WAIT_S)
        jobs[0].cancel()
        wait_until(lambda: is_stopped(worker, jobs[0]))
        assert not ended.is_set()
        jobs[1].cancel()
        assert ended.wait(WAIT_S)
        assert [job.wait(WAIT_S) for job in jobs] == ["cancelled"] * 2


def test_a_task_that_is_cancelled_while_it_is_gathered_never_runs(either_app: Onetray) -> None:
    calls = Calls(either_app, batch=2, batch_s=LONG_S)
    (gathered,) = calls.submit(1)
    with either_app.worker():
        wait_until(lambda: gathered.state == "assigned")
        gathered.cancel()
        assert gathered.wait(WAIT_S) == "cancelled"
        assert [job.result(WAIT_S) for job in calls.submit(2, 3)] == [4, 6]
    assert calls.seen == [[2, 3]]


def test_leases_are_renewed_while_tasks_are_gathered(either_app: Onetray) -> None:
    calls = Calls(either_app, batch=2, batch_s=LONG_S, lease_s=0.5)
    (first,) = calls.submit(1)
    task = either_app.engine.task
    with either_app.worker():
        wait_until(lambda: first.state == "assigned")
        expiry = task(first.id).lease_expires_at or 0
        wait_until(lambda: (task(first.id).lease_expires_at or 0) > expiry)
        calls.submit(2)
        assert first.result(WAIT_S) == 2
    assert [event.type for event in first.events()].count("task.claimed") >= 1


def test_a_stop_releases_what_was_gathered_and_not_started(either_app: Onetray) -> None:
    calls = Calls(either_app, batch=3, batch_s=LONG_S)
    jobs = calls.submit(1, 2)
    with either_app.worker() as worker:
        wait_until(lambda: len(worker.held) == 2)
    for job in jobs:
        view = either_app.engine.task(job.id)
        assert (view.state, view.attempts) == ("queued", 0)
    assert calls.seen == []


def test_a_stop_past_the_drain_releases_each_task_of_a_call(either_app: Onetray) -> None:
    calls = Calls(either_app, "async", batch=2, batch_s=LONG_S)
    calls.go.clear()
    jobs = calls.submit(1, 2)
    with either_app.worker(drain_s=0):
        wait_until(lambda: calls.seen)
    for job in jobs:
        view = either_app.engine.task(job.id)
        assert (view.state, view.attempts) == ("queued", 0)


def test_each_task_has_its_own_log_line(app: Onetray, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "onetray.worker")

    @app.task(batch=2, batch_s=LONG_S, retries=0)
    def half(items: list[dict[str, int]]) -> list[Any]:
        return [1, ValueError("only this one")]

    jobs = [half.submit(n=n) for n in (1, 2)]
    with app.worker():
        assert [job.wait(WAIT_S) for job in jobs] == ["succeeded", "dead_lettered"]
    lines = [line for line in caplog.messages if "attempt 1" in line and ("succeeded" in line or "failed" in line)]
    assert [(jobs[0].id in line, jobs[1].id in line) for line in lines] in (
        [(True, False), (False, True)], [(False, True), (True, False)],
    )  # fmt: skip


def test_a_batch_with_a_durable_start_records_each_start_first(app: Onetray) -> None:
    @app.task(batch=2, batch_s=LONG_S, durable_start=True)
    async def look(items: Items) -> list[str]:
        return [app.engine.task(item.ctx.id).state for item in items]

    jobs = [look.submit(n=n) for n in (1, 2)]
    with app.worker():
        assert [job.result(WAIT_S) for job in jobs] == ["running"] * 2


def test_a_queue_with_a_limit_bounds_a_batch(app: Onetray) -> None:
    calls = Calls(app, batch=10, batch_s=0.05)
    jobs = calls.submit(*range(5))
    with app.worker(queues=["default:2"]):
        assert [job.wait(WAIT_S) for job in jobs] == ["succeeded"] * 5
    assert max(map(len, calls.seen)) == 2
