"""The harness: an app's tasks run in a test, in order, on a clock that is told."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from onetray import InvalidInput, Job, JobFailed, Onetray, PermanentError, ctx
from onetray.testing import Harness
from tests.support.waits import yield_once

LIFE = ("task.submitted", "task.claimed", "task.started", "task.succeeded")


def forget_the_events_of(harness: Harness, job: Job[None]) -> None:
    with harness.engine.store.transaction() as tx:
        tx.query("delete_batches", keys=[1])


@pytest.fixture
def app() -> Onetray:
    return Onetray("sqlite:////nowhere/at/all.db")


def test_a_task_runs_when_the_test_says_so(app: Onetray) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    with Harness(app) as harness:
        job = double.submit(n=4)
        harness.assert_state(job, "queued")
        assert harness.drain() == 1
        assert job.result(0) == 8
        harness.assert_events(job, *LIFE)
        assert harness.drain() == 0


def test_the_app_gets_its_own_engine_back(app: Onetray) -> None:
    outer = Onetray("sqlite://:memory:")
    engine = outer.engine
    with Harness(outer) as harness:
        assert outer.engine is harness.engine is not engine
    assert outer.engine is engine
    outer.close()


def test_a_harness_is_open_once_at_a_time_and_empty_each_time(app: Onetray) -> None:
    @app.task
    def fine() -> None: ...

    harness = Harness(app)
    for _ in range(2):
        with harness:
            with pytest.raises(InvalidInput, match="already open"):
                harness.open()
            fine.submit()
            assert harness.drain() == 1


def test_handlers_run_in_the_tests_own_thread_whatever_their_isolation(app: Onetray) -> None:
    seen = []

    @app.task(isolation="process")
    def heavy() -> None:
        seen.append(threading.get_ident())

    @app.task
    async def light() -> None:
        await yield_once()
        seen.append(threading.get_ident())

    with Harness(app) as harness:
        heavy.submit()
        light.submit()
        assert harness.drain() == 2
    assert seen == [threading.get_ident()] * 2


def test_the_first_in_a_queue_is_the_one_of_the_highest_priority(app: Onetray) -> None:
    order = []

    @app.task
    def note(n: int) -> None:
        order.append(n)

    with Harness(app) as harness:
        note.submit(n=1)
        note.submit(n=2)
        note.options(priority=9).submit(n=3)
        assert harness.run_next()
        assert order == [3]
        harness.drain()
        assert order == [3, 1, 2]
        assert not harness.run_next()


def test_tasks_of_every_queue_are_found(app: Onetray) -> None:
    @app.task(queue="mail")
    def mail() -> None: ...

    with Harness(app) as harness:
        mail.submit()
        mail.options(queue="elsewhere").submit()
        assert harness.drain() == 2


def test_a_retry_comes_when_its_time_has_come(app: Onetray) -> None:
    @app.task(retries=1, backoff_base_s=10, jitter=False)
    def flaky() -> int:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return ctx.attempt

    with Harness(app) as harness:
        job = flaky.submit()
        assert harness.drain() == 1
        harness.assert_state(job, "queued")
        harness.advance(9.9)
        assert harness.drain() == 0
        harness.advance(0.1)
        assert harness.drain() == 1
        assert job.result(0) == 2


def test_a_delay_passes_when_the_clock_is_moved(app: Onetray) -> None:
    @app.task
    def later() -> None: ...

    with Harness(app) as harness:
        later.options(delay_s=3600).submit()
        assert harness.drain() == 0
        harness.advance(3600)
        assert harness.drain() == 1


def test_time_does_not_go_back(app: Onetray) -> None:
    with Harness(app) as harness, pytest.raises(InvalidInput, match="cannot go back"):
        harness.advance(-1)


def test_a_lease_that_runs_out_under_a_handler_costs_it_its_report(
    app: Onetray, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(lease_s=10)
    def slow() -> int:
        if ctx.attempt == 1:
            harness.advance(11)
            assert ctx.cancelled
        return ctx.attempt

    with Harness(app) as harness:
        job = slow.submit()
        harness.drain()
        harness.advance(60)
        harness.drain()
        assert job.result(0) == 2
        assert harness.events(job).count("task.claimed") == 2


def test_a_handler_sees_that_a_cancel_was_asked_for(app: Onetray) -> None:
    @app.task
    def stubborn() -> None:
        app.job(ctx.id).cancel()
        ctx.check_cancelled()

    with Harness(app) as harness:
        job = stubborn.submit()
        harness.drain()
        harness.assert_state(job, "cancelled")


def test_what_a_handler_says_is_there_at_once(app: Onetray) -> None:
    @app.task
    def chatty() -> list[str]:
        ctx.log("hello", to="ann")
        ctx.progress(1, 2, "half")
        ctx.checkpoint({"at": 1})
        ctx.heartbeat()
        return [line.line for line in app.job(ctx.id).logs()]

    with Harness(app) as harness:
        job = chatty.submit()
        harness.drain()
        assert job.result(0) == ["hello"]
        assert harness.engine.progress_of(job.id).message == "half"
        assert harness.engine.last_checkpoint(job.id) == {"at": 1}


def test_a_checkpoint_can_be_awaited(app: Onetray) -> None:
    @app.task
    async def careful() -> object:
        await ctx.checkpoint([1])
        return ctx.last_checkpoint

    with Harness(app) as harness:
        job = careful.submit()
        harness.drain()
        assert job.result(0) == [1]


def test_what_cannot_be_kept_fails_the_task(app: Onetray) -> None:
    @app.task
    def large() -> str:
        return "x" * 2_000_000

    with Harness(app) as harness:
        job = large.submit()
        harness.drain()
        with pytest.raises(JobFailed, match="could not be stored"):
            job.result(0)


def test_resources_come_from_the_lifespan_and_end_with_the_harness(app: Onetray) -> None:
    seen = []

    @app.lifespan
    async def open_things() -> AsyncIterator[str]:
        seen.append("begin")
        yield "a connection"
        seen.append("end")

    @app.task
    def use() -> None:
        seen.append(ctx.resources)

    with Harness(app) as harness:
        assert seen == []
        use.submit()
        use.submit()
        harness.drain()
    assert seen == ["begin", "a connection", "a connection", "end"]


def test_other_resources_can_be_given_instead(app: Onetray) -> None:
    @app.lifespan
    def open_things() -> Iterator[str]:
        raise AssertionError("not in a test")
        yield

    @app.task
    def use() -> str:
        return str(ctx.resources)

    with Harness(app, resources="a fake") as harness:
        job = use.submit()
        harness.drain()
        assert job.result(0) == "a fake"


def test_a_task_that_submits_itself_for_ever_is_stopped(app: Onetray) -> None:
    @app.task
    def again() -> None:
        again.submit()

    with Harness(app) as harness:
        again.submit()
        with pytest.raises(AssertionError, match=r"5 attempts were run, and again .* keep submitting itself"):
            harness.drain(limit=5)
        assert harness.run_next()


def test_the_limit_may_be_reached(app: Onetray) -> None:
    @app.task
    def once() -> None: ...

    with Harness(app) as harness:
        once.submit_many([{}] * 5)
        assert harness.drain(limit=5) == 5


def test_a_wrong_guess_about_events_is_shown_line_by_line(app: Onetray) -> None:
    @app.task
    def fine() -> None: ...

    with Harness(app) as harness:
        job = fine.submit()
        harness.drain()
        with pytest.raises(AssertionError) as raised:
            harness.assert_events(job, "task.submitted", "task.claimed", "task.failed")
        said = str(raised.value).splitlines()[1:]
        assert said == ["  task.submitted", "  task.claimed", "- task.failed", "+ task.started", "+ task.succeeded"]


def test_a_wrong_guess_about_a_state_says_why(app: Onetray) -> None:
    @app.task
    def broken() -> None:
        raise PermanentError("no such mailbox")

    @app.task
    def later() -> None: ...

    with Harness(app) as harness:
        job = broken.submit()
        waiting = later.options(delay_s=60).submit()
        harness.drain()
        with pytest.raises(AssertionError, match=r"is failed, not succeeded\n(.*\n)*.*no such mailbox"):
            harness.assert_state(job, "succeeded")
        with pytest.raises(AssertionError, match=r"is queued, not succeeded\n."):
            harness.assert_state(waiting, "succeeded")


def test_an_interrupt_reaches_the_test(app: Onetray) -> None:
    @app.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    with Harness(app) as harness:
        job = interrupted.submit()
        with pytest.raises(KeyboardInterrupt):
            harness.drain()
        assert job.view().error["class"] == "KeyboardInterrupt"


def test_a_broken_rule_fails_the_test(app: Onetray) -> None:
    @app.task
    def fine() -> None: ...

    harness = Harness(app)
    with pytest.raises(AssertionError, match="rule 3, unrecorded"), harness:
        forget_the_events_of(harness, fine.submit())


def test_a_broken_rule_does_not_hide_what_failed_the_test(app: Onetray) -> None:
    @app.task
    def fine() -> None: ...

    def fail(harness: Harness) -> None:
        forget_the_events_of(harness, fine.submit())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Harness(app) as harness:
        fail(harness)


def test_a_stage_is_approved_by_its_name(app: Onetray) -> None:
    flow = app.flow("pay")

    @flow.stage(approve="ann")
    def pay(approval: dict[str, object]) -> object:
        return approval["input"]

    with Harness(app) as harness:
        job = flow.submit()
        assert harness.drain() == 0
        with pytest.raises(InvalidInput, match="no stage 'paid'; it has: pay"):
            harness.approve(job, "paid")
        harness.approve(job, "pay", input={"amount": 3}, by="ann")
        harness.drain()
        assert job.result(0) == {"pay": {"amount": 3}}


def test_the_harness_works_inside_an_async_test(app: Onetray) -> None:
    @app.task
    async def gentle() -> int:
        await yield_once()
        return 1

    async def main() -> int:
        with Harness(app) as harness:
            job = await gentle.aio.submit()
            harness.drain()
            return await job.result(1)

    assert asyncio.run(main()) == 1
