"""The lifespan and the hooks: what an app does around its tasks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from onetray import Engine, JobFailed, Onetray, PermanentError, TaskContext, ctx
from onetray.testing import Harness
from tests.support.waits import yield_once


def test_a_lifespan_that_is_not_async_is_run_by_each_worker(app: Onetray, engine: Engine) -> None:
    app.use(engine)
    seen = []

    @app.lifespan
    def pool() -> Iterator[list[str]]:
        seen.append("begin")
        yield ["a pool"]
        seen.append("end")

    @app.task
    def threaded() -> Any:
        return ctx.resources

    @app.task
    async def on_the_loop() -> Any:
        return ctx.resources

    for _ in range(2):
        with app.worker():
            assert threaded.submit().result(20) == on_the_loop.submit().result(20) == ["a pool"]
    assert seen == ["begin", "end"] * 2


def test_an_async_lifespan_lives_on_the_loop_of_its_handlers(app: Onetray, harness: Harness) -> None:
    @app.lifespan
    async def loops() -> AsyncIterator[Any]:
        yield asyncio.get_running_loop()

    @app.task
    async def same() -> bool:
        return ctx.resources is asyncio.get_running_loop()

    job = same.submit()
    harness.drain()
    assert job.result(0) is True


def test_a_worker_whose_lifespan_fails_does_not_start(app: Onetray, harness: Harness) -> None:
    @app.lifespan
    def pool() -> Iterator[None]:
        raise ConnectionError("no database there")
        yield

    @app.task
    def work() -> None: ...

    job, before = work.submit(), set(threading.enumerate())
    with pytest.raises(ConnectionError, match="no database there"):
        app.worker().start()
    assert job.state == "queued"
    assert harness.engine.workers() == []
    assert set(threading.enumerate()) <= before


def test_a_lifespan_that_ends_badly_does_not_hold_up_the_stop(
    app: Onetray, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    app.use(engine)

    @app.lifespan
    def pool() -> Iterator[None]:
        yield
        raise ConnectionError("gone already")

    @app.task
    def work() -> int:
        return 1

    with app.worker():
        assert work.submit().result(20) == 1
    assert "the lifespan failed to end" in caplog.text
    assert engine.workers() == []


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_hooks_see_each_attempt(app: Onetray, harness: Harness, asynchronous: bool) -> None:
    seen: list[Any] = []

    def hook(name: str):
        def note(context: TaskContext, *more: Any) -> None:
            assert context.id == ctx.id
            seen.append((name, context.attempt, *map(str, more)))

        async def note_later(context: TaskContext, *more: Any) -> None:
            await yield_once()
            note(context, *more)

        return note_later if asynchronous else note

    app.before(hook("before"))
    app.after(hook("after"))
    app.on_error(hook("on_error"))

    @app.task(retries=1, backoff_base_s=0)
    def flaky() -> int:
        if ctx.attempt == 1:
            raise RuntimeError("again")
        return 7

    flaky.submit()
    harness.drain()
    assert seen == [("before", 1), ("on_error", 1, "again"), ("before", 2), ("after", 2, "7")]


def test_async_hooks_run_around_handlers_in_threads(app: Onetray, engine: Engine) -> None:
    app.use(engine)
    seen = []

    @app.before
    async def note(context: TaskContext) -> None:
        await yield_once()
        seen.append(context.id)

    @app.task
    def work() -> int:
        return len(seen)

    with app.worker():
        assert work.submit().result(20) == 1


def test_a_before_hook_that_raises_fails_the_attempt(app: Onetray, harness: Harness) -> None:
    ran = []

    @app.before
    def refuse(context: TaskContext) -> None:
        raise PermanentError("closed today")

    @app.task
    def work() -> None:
        ran.append(1)

    job = work.submit()
    harness.drain()
    with pytest.raises(JobFailed, match="closed today"):
        job.result(0)
    assert ran == []


def test_an_after_hook_that_raises_changes_nothing(
    app: Onetray, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    @app.after
    def careless(context: TaskContext, result: int) -> None:
        raise RuntimeError("in the hook")

    @app.after
    def next_one(context: TaskContext, result: int) -> None:
        seen.append(result)

    @app.task
    def work() -> int:
        return 5

    job = work.submit()
    harness.drain()
    assert (job.result(0), seen) == (5, [5])
    assert f"an after hook of work {job.id} failed" in caplog.text


def test_an_error_hook_that_raises_does_not_hide_the_error(
    app: Onetray, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.on_error
    def careless(context: TaskContext, error: BaseException) -> None:
        raise RuntimeError("in the hook")

    @app.task
    def work() -> None:
        raise PermanentError("the real one")

    job = work.submit()
    harness.drain()
    with pytest.raises(JobFailed, match="the real one"):
        job.result(0)
    assert "in the hook" in caplog.text


def test_a_wait_or_a_cancel_is_no_error(app: Onetray, harness: Harness) -> None:
    seen = []
    app.on_error(lambda context, error: seen.append(error))

    @app.task
    def asks() -> None:
        ctx.wait_for_input()

    @app.task
    def stops() -> None:
        app.job(ctx.id).cancel()
        ctx.check_cancelled()

    jobs = [asks.submit(), stops.submit()]
    harness.drain()
    assert ([job.state for job in jobs], seen) == (["waiting_input", "cancelled"], [])
