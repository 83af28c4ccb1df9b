"""The client with `await`: the same names, and a loop that is never held up."""

import asyncio
import gc
import threading
import weakref

import pytest

from onetray import AsyncJob, Engine, InvalidInput, JobFailed, NotYet, Onetray, PermanentError
from onetray.app.async_api import notifier_of
from onetray.testing import Harness
from tests.support.waits import until, wait_until, yield_once


@pytest.fixture
def double(app: Onetray):
    @app.task
    async def double(n: int) -> int:
        if n < 0:
            raise PermanentError("negative")
        return 2 * n

    return double


def test_submit_and_result_are_awaited(app: Onetray, engine: Engine, double) -> None:
    app.use(engine)

    async def main() -> None:
        job = await double.aio.submit(n=2)
        assert await job.result(20) == 4
        assert await job.state() == "succeeded"
        assert [event.type async for event in job.events(follow=True)][-1] == "task.succeeded"
        assert [line async for line in job.logs()] == []
        assert await job.explain() is not None
        many = await double.aio.submit_many([{"n": 3}, {"n": -1}])
        assert await many[0].result(20) == 6
        with pytest.raises(JobFailed, match="negative") as raised:
            await many[1].result(20)
        assert (raised.value.task, raised.value.error_class) == (many[1].id, "PermanentError")
        assert await (await many[1].retry()).wait(20) == "failed"

    with app.worker():
        asyncio.run(main())


def test_the_thread_of_a_loop_ends_with_it(app: Onetray, engine: Engine, double) -> None:
    app.use(engine)

    def threads() -> set[threading.Thread]:
        gc.collect()
        return {thread for thread in threading.enumerate() if thread.name.startswith("onetray-batch")}

    before = threads()
    for n in range(3):
        asyncio.run(double.aio.submit(n=n))
    wait_until(lambda: threads() <= before)


def test_a_flow_is_submitted_paused_and_resumed_with_await(app: Onetray) -> None:
    flow = app.flow("report")

    @flow.stage(each=lambda config: range(config))
    def square(item: int) -> int:
        return item * item

    async def main() -> None:
        job = await flow.aio.submit(3, unique_key="one")
        assert (await flow.aio.submit(3, unique_key="one")).id == job.id
        harness.engine.pause_flow(job.id)
        assert await job.resume(by="ann") == "pending"
        harness.drain()
        assert await job.result(5) == {"square": [0, 1, 4]}

    with Harness(app) as harness:
        asyncio.run(main())


def test_many_wait_at_once_on_one_loop(app: Onetray, engine: Engine, double) -> None:
    app.use(engine)
    n = 60

    async def main() -> list[int]:
        jobs = await double.aio.submit_many([{"n": i} for i in range(n)])
        waiting = [asyncio.create_task(job.result(60)) for job in jobs]
        await yield_once()
        with app.worker():
            return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == [2 * i for i in range(n)]
    assert notifier_of(engine.wake)._waiting == set()


def test_a_waiter_that_is_cancelled_leaves_nothing_behind(app: Onetray, harness: Harness, double) -> None:
    bell = notifier_of(harness.engine.wake)

    async def main() -> None:
        job = await double.aio.submit(n=1)
        waiting = asyncio.create_task(job.wait())
        await until(lambda: bell._waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bell._waiting == set()
        # What others wait for is not disturbed.
        harness.drain()
        assert await job.result(5) == 2

    before = {t.name for t in threading.enumerate()}
    asyncio.run(main())
    # The thread of the loop's batches ends with the loop, soon after.
    of_engine = {"onetray-notifier", "onetray-listener"}
    wait_until(lambda: gc.collect() is not None and {t.name for t in threading.enumerate()} - before <= of_engine)


@pytest.mark.timeout(30)
def test_a_follower_that_is_cancelled_does_not_keep_its_program_from_ending(harness: Harness, double) -> None:
    bell = notifier_of(harness.engine.wake)

    async def follow(job: AsyncJob[int]) -> None:
        async for _ in job.events(follow=True):
            pass

    async def main() -> str:
        job = await double.aio.submit(n=1)
        following = asyncio.create_task(follow(job))
        await until(lambda: bell._waiting)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        return await job.state()

    # This waits for the loop's threads, too.
    assert asyncio.run(main()) == "queued"


def test_an_engine_that_was_waited_for_is_forgotten(app: Onetray, double) -> None:
    with Harness(app) as harness:
        double.submit(n=1)
        wake = weakref.ref(harness.engine.wake)
        assert notifier_of(harness.engine.wake) is notifier_of(harness.engine.wake)
    del harness
    gc.collect()
    assert wake() is None


def test_time_may_run_out(harness: Harness, double) -> None:
    async def main() -> None:
        job = await double.aio.submit(n=1)
        with pytest.raises(NotYet, match="still queued after 0"):
            await job.wait(0)
        assert await job.cancel() == "cancelled"

    asyncio.run(main())


def test_a_bad_call_is_refused_at_the_await(harness: Harness, double) -> None:
    async def main() -> None:
        with pytest.raises(InvalidInput, match="valid integer"):
            await double.aio.submit(n="two")
        with pytest.raises(InvalidInput, match="each call must be a dict"):
            await double.aio.submit_many([1])

    asyncio.run(main())
    assert harness.engine.tasks() == []


def test_a_task_is_submitted_by_its_kind_with_await(app: Onetray, anywhere: Harness, double) -> None:
    async def main() -> None:
        job = await app.aio.submit("double", {"n": 2}, priority=3)
        assert (await job.view()).priority == 3
        assert (await app.aio.job(job.id)).id == job.id
        anywhere.drain()
        assert await job.result(5) == 4
        with pytest.raises(InvalidInput, match="unknown task 'treble'; declared tasks: double"):
            await app.aio.submit("treble")
        with pytest.raises(InvalidInput, match="did you mean 'priority'"):
            await app.aio.submit(double, {"n": 2}, prio=3)

    asyncio.run(main())


def test_options_hold_for_async_submits_too(harness: Harness, double) -> None:
    async def main() -> None:
        first = await double.options(idempotency_key="k").aio.submit(n=1)
        again = await double.options(idempotency_key="k").aio.submit(n=1)
        assert (first.id, again.repeated) == (again.id, True)

    asyncio.run(main())
