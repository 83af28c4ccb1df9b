"""Cancels, lost leases and a blocked event loop while handlers run in this process."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from onetray import Onetray, ctx
from tests.support.waits import forever, wait_until

WAIT_S = 60.0


class Signals:
    """Events between a handler and the test."""

    def __init__(self) -> None:
        self.began, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.seen: list[str] = []

    def begin(self, word: str = "began") -> None:
        self.seen.append(word)
        self.began.set()

    def end(self, word: str) -> None:
        self.seen.append(word)
        self.ended.set()


@pytest.fixture
def signals() -> Signals:
    return Signals()


@pytest.mark.parametrize("hard", [False, True])
def test_a_cancel_reaches_an_async_handler_as_cancelled_error(
    either_app: Onetray, signals: Signals, hard: bool
) -> None:
    @either_app.task
    async def wait() -> None:
        signals.begin()
        try:
            await forever()
        except asyncio.CancelledError:
            signals.end("cancelled" if ctx.cancelled else "unexpected")
            raise

    job = wait.submit()
    with either_app.worker():
        assert signals.began.wait(WAIT_S)
        job.cancel(hard=hard)
        assert signals.ended.wait(WAIT_S)
        assert job.wait(WAIT_S) == "cancelled"
    assert signals.seen == ["began", "cancelled"]


@pytest.mark.parametrize("hard", [False, True])
def test_a_cancel_reaches_a_handler_in_a_thread_when_it_calls_check_cancelled(
    either_app: Onetray, signals: Signals, hard: bool
) -> None:
    @either_app.task
    def wait() -> None:
        signals.begin()
        try:
            wait_until(ctx.check_cancelled)
        finally:
            signals.end("stopped")

    job = wait.submit()
    with either_app.worker():
        assert signals.began.wait(WAIT_S)
        job.cancel(hard=hard)
        assert signals.ended.wait(WAIT_S)
        assert job.wait(WAIT_S) == "cancelled"
    assert signals.seen == ["began", "stopped"]


def test_a_success_after_a_soft_cancel_counts_and_one_after_a_hard_cancel_does_not(app: Onetray) -> None:
    signals_of = {"soft": Signals(), "hard": Signals()}

    @app.task
    def finish(how: str) -> str:
        signals_of[how].begin()
        wait_until(lambda: ctx.cancelled)
        return "done"

    jobs = {how: finish.submit(how) for how in signals_of}
    with app.worker():
        assert all(s.began.wait(WAIT_S) for s in signals_of.values())
        for how, job in jobs.items():
            job.cancel(hard=how == "hard")
        assert {how: job.wait(WAIT_S) for how, job in jobs.items()} == {"soft": "succeeded", "hard": "cancelled"}


def test_the_handler_of_a_prefetched_task_that_is_cancelled_is_never_called(app: Onetray, signals: Signals) -> None:
    called: list[int] = []

    @app.task
    def hold() -> None:
        signals.begin()
        assert signals.go.wait(WAIT_S)

    @app.task
    async def late(n: int) -> None:
        called.append(n)

    with app.worker(concurrency=1) as worker:
        hold.submit()
        assert signals.began.wait(WAIT_S)
        job = late.submit(1)
        # Prefetch it, as a worker with short tasks does.
        (claimed,) = app.engine.call(worker._claim_command("default", 1, "k"))
        worker._accept_claim([claimed], time.monotonic())
        job.cancel()
        wait_until(lambda: worker.executor.waiting[0].stop_reason is not None)
        signals.go.set()
        assert job.wait(WAIT_S) == "cancelled"
    assert called == []


def test_a_cancel_while_the_loop_is_blocked_reaches_the_handler_that_could_not_begin(
    app: Onetray, signals: Signals
) -> None:
    called: list[int] = []

    @app.task
    async def block() -> None:
        signals.begin()
        assert signals.go.wait(WAIT_S)

    @app.task
    async def late() -> None:
        called.append(1)

    with app.worker(concurrency=2) as worker:
        block.submit()
        assert signals.began.wait(WAIT_S)
        job = late.submit()
        wait_until(lambda: len(worker.executor.running) == 2)
        job.cancel()
        wait_until(lambda: any(a.stop_reason is not None for a in list(worker.executor.running)))
        signals.go.set()
        assert job.wait(WAIT_S) == "cancelled"
    assert called == []


def test_a_blocked_loop_keeps_its_leases_and_the_log_shows_where_it_is_blocked(
    either_app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    @either_app.task(lease_s=6.0, retries=3)
    async def block() -> int:
        assert go.wait(WAIT_S)
        return ctx.attempt

    def expiry() -> int | None:
        return either_app.engine.task(job.id).lease_expires_at

    job = block.submit()
    with either_app.worker():
        wait_until(lambda: expiry() is not None)
        first = expiry()
        wait_until(lambda: expiry() != first)
        wait_until(lambda: "the event loop is blocked" in caplog.text)
        go.set()
        assert job.result(WAIT_S) == 1
    assert [event.type for event in job.events()].count("task.succeeded") == 1
    assert f"the event loop is blocked, by one of: block {job.id}" in caplog.text
    assert "assert go.wait(WAIT_S)" in caplog.text


def test_a_handler_whose_lease_is_lost_is_stopped_and_its_report_dropped(
    either_app: Onetray, signals: Signals, caplog: pytest.LogCaptureFixture
) -> None:
    # With durable_start the attempt counts as started; otherwise an expired lease would not cost an attempt.
    @either_app.task(retries=3, durable_start=True)
    async def work() -> int:
        if ctx.fence == 2:
            return 2
        signals.begin()
        try:
            await forever()
        except asyncio.CancelledError:
            signals.end(f"cancelled={ctx.cancelled}")
        return 1

    job = work.submit()
    with either_app.worker():
        assert signals.began.wait(WAIT_S)
        engine = either_app.engine
        engine.expire_leases(now=engine.store.now() + 3600 * 1_000_000)
        assert signals.ended.wait(WAIT_S)
        assert job.result(WAIT_S) == 2
    assert signals.seen == ["began", "cancelled=True"]
    assert f"work {job.id} (attempt 1) is lost" in caplog.text
    assert f"the report of work {job.id} (attempt 1) is dropped" in caplog.text


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_with_durable_start_a_handler_begins_only_after_its_start_is_committed(
    either_app: Onetray, isolation: str
) -> None:
    def read_state() -> str:
        return either_app.engine.task(ctx.id).state

    async def read_state_async() -> str:
        return read_state()

    task = either_app.task(kind="read_state", durable_start=True)(
        read_state if isolation == "thread" else read_state_async
    )
    with either_app.worker():
        assert task.submit().result(WAIT_S) == "running"


def test_a_durable_start_that_is_refused_begins_nothing(app: Onetray, signals: Signals) -> None:
    called: list[int] = []

    @app.task
    def hold() -> None:
        signals.begin()
        assert signals.go.wait(WAIT_S)

    @app.task(durable_start=True)
    async def careful() -> None:
        called.append(1)

    job = careful.submit()
    hold.options(priority=9).submit()
    with app.worker(concurrency=1) as worker:
        assert signals.began.wait(WAIT_S)
        (claimed,) = app.engine.call(worker._claim_command("default", 1, "k"))
        job.cancel(hard=True)
        worker._accept_claim([claimed], time.monotonic())
        signals.go.set()
        assert job.wait(WAIT_S) == "cancelled"
        wait_until(lambda: len(worker.held) == 0)
    assert called == []
