"""Heartbeats for a claim of which this worker has lost some tasks while their handlers still run."""

from __future__ import annotations

import threading
import time

from onetray import Onetray, ctx
from onetray.worker.attempt import LOST
from tests.support.fleet import wait_until

WAIT_S = 60.0


def test_a_task_keeps_its_lease_while_other_tasks_of_its_claim_are_lost(either_app: Onetray) -> None:
    gate, began = threading.Event(), []

    @either_app.task
    def ignore_cancel(n: int) -> int:
        began.append(n)
        while not gate.wait(0.02):
            if n == 0:
                ctx.heartbeat()
        return n

    jobs = ignore_cancel.submit_many([{"n": n} for n in range(20)])
    healthy, engine = jobs[0], either_app.engine
    with either_app.worker(concurrency=20) as worker:
        try:
            wait_until(lambda: len(began) == 20)
            assert len(worker.held.leases()) == 1
            for job in jobs[1:]:
                job.cancel(hard=True)
            wait_until(lambda: sum(a.stop_reason == LOST for a in list(worker.executor.running)) == 19)
            expiry = engine.task(healthy.id).lease_expires_at
            wait_until(lambda: engine.task(healthy.id).lease_expires_at != expiry)
            assert engine.task(healthy.id).state == "running"
        finally:
            gate.set()
        assert healthy.result(WAIT_S) == 0
    assert {job.state for job in jobs[1:]} == {"cancelled"}


def test_lost_tasks_get_no_heartbeat_and_count_against_the_limit_of_their_queue_until_they_end(app: Onetray) -> None:
    gate, began = threading.Event(), []

    @app.task
    def ignore_cancel() -> None:
        began.append(1)
        assert gate.wait(WAIT_S)

    jobs = ignore_cancel.submit_many([{}] * 3)
    with app.worker(queues="default:3") as worker:
        try:
            wait_until(lambda: len(began) == 3)
            for job in jobs:
                job.cancel(hard=True)
            wait_until(lambda: worker.held.leases() == [])
            assert worker.held.of_queue("default") == 3
        finally:
            gate.set()
        wait_until(lambda: worker.held.of_queue("default") == 0)


def test_a_claim_answered_late_keeps_its_tasks_when_one_of_them_was_cancelled_meanwhile(app: Onetray) -> None:
    gate, ran = threading.Event(), []

    @app.task
    def hold() -> None:
        assert gate.wait(WAIT_S)

    @app.task
    async def work(n: int) -> None:
        ran.append(n)

    with app.worker(concurrency=1) as worker:
        try:
            hold.submit()
            wait_until(lambda: len(worker.executor.running) == 1)
            jobs = work.submit_many([{"n": n} for n in range(3)])
            claimed = app.engine.call(worker._claim_command("default", 3, "k"))
            # The first and the last: a heartbeat may be sent for either.
            for job in (jobs[0], jobs[2]):
                job.cancel(hard=True)
            worker._claimers[0]._accept_all(claimed, time.monotonic(), repeated=True)
        finally:
            gate.set()
        assert jobs[1].wait(WAIT_S) == "succeeded"
    assert ran == [1]
