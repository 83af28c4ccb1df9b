"""A cancel, a lost lease or a blocked loop while handlers run in this process."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from onetray import Onetray, ctx
from tests.support.waits import forever, wait_until

WAIT_S = 60.0


class Signals:
    """What handlers say to the test, and it to them."""

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
            signals.end("cancelled" if ctx.cancelled else "odd")
            raise

    job = wait.submit()
    with either_app.worker():
        assert signals.began.wait(WAIT_S)
        job.cancel(hard=hard)
        assert signals.ended.wait(WAIT_S)
        assert job.wait(WAIT_S) == "cancelled"
    assert signals.seen == ["began", "cancelled"]


@pytest.mark.parametrize("hard", [False, True])
def test_a_cancel_reaches_a_handler_in_a_thread_where_it_asks(
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
    went = {"soft": Signals(), "hard": Signals()}

    @app.task
    def finish(how: str) -> str:
        went[how].begin()
        wait_until(lambda: ctx.cancelled)
        return "done"

    jobs = {how: finish.submit(how) for how in went}
    with app.worker():
        assert all(s.began.wait(WAIT_S) for s in went.values())
        for how, job in jobs.items():
            job.cancel(hard=how == "hard")
        assert {how: job.wait(WAIT_S) for how, job in jobs.items()} == {"soft": "succeeded", "hard": "cancelled"}


def test_a_task_that_is_cancelled_while_it_waits_for_a_place_is_never_called(app: Onetray, signals: Signals) -> None:
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
        # Claimed ahead, as a worker with short tasks does it.
        (claimed,) = app.engine.call(worker._claim("default", 1, "k"))
        worker._take([claimed], time.monotonic())
        job.cancel()
        wait_until(lambda: worker.floor.waiting[0].stop is not None)
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
        wait_until(lambda: len(worker.floor.running) == 2)
        job.cancel()
        wait_until(lambda: any(run.stop is not None for run in list(worker.floor.running)))
        signals.go.set()
        assert job.wait(WAIT_S) == "cancelled"
    assert called == []


def test_a_blocked_loop_keeps_its_leases_and_the_log_says_where_it_is_blocked(
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
    # Its start is written before it begins: one that had not started would get its attempt back.
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
    assert f"work {job.id} (attempt 1) is not ours any more" in caplog.text
    assert f"work {job.id} (attempt 1) has ended, and nobody wants to know" in caplog.text


@pytest.mark.parametrize("isolation", ["thread", "async"])
def test_with_durable_start_a_handler_begins_only_after_its_start_is_committed(
    either_app: Onetray, isolation: str
) -> None:
    def look() -> str:
        return either_app.engine.task(ctx.id).state

    async def look_async() -> str:
        return look()

    task = either_app.task(kind="look", durable_start=True)(look if isolation == "thread" else look_async)
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
        (claimed,) = app.engine.call(worker._claim("default", 1, "k"))
        job.cancel(hard=True)
        worker._take([claimed], time.monotonic())
        signals.go.set()
        assert job.wait(WAIT_S) == "cancelled"
        wait_until(lambda: len(worker.held) == 0)
    assert called == []
