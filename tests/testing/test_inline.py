"""Inline: a submit runs its task, and raises what the task raises."""

import asyncio
import threading

import pytest

from onetray import JobFailed, Onetray, PermanentError, ctx
from onetray.testing import run_inline
from tests.support.waits import yield_once


@pytest.fixture
def app() -> Onetray:
    return Onetray("sqlite:////nowhere/at/all.db")


def test_a_submit_runs_its_task_at_once_in_its_own_thread(app: Onetray) -> None:
    @app.task
    def where() -> int:
        return threading.get_ident()

    with run_inline(app) as harness:
        job = where.submit()
        assert job.result(0) == threading.get_ident()
        harness.assert_events(job, "task.submitted", "task.claimed", "task.started", "task.succeeded")


def test_what_a_task_raises_is_raised_by_its_submit(app: Onetray) -> None:
    error = ValueError("no such mailbox")

    @app.task(retries=5)
    def broken() -> None:
        raise error

    with run_inline(app) as harness:
        with pytest.raises(ValueError, match="no such mailbox") as raised:
            broken.submit()
        assert raised.value is error
        [task] = harness.engine.tasks()
        assert (task.state, task.attempts) == ("failed", 1)


def test_a_result_that_does_not_fit_is_told_as_a_failed_job(app: Onetray) -> None:
    @app.task
    def wrong() -> int:
        return "many"  # type: ignore[return-value]

    with run_inline(app), pytest.raises(JobFailed, match="does not match its return type"):
        wrong.submit()


def test_a_child_runs_inside_its_parent(app: Onetray) -> None:
    @app.task
    def child(n: int) -> int:
        return n + 1

    @app.task
    def parent() -> int:
        return child.submit(n=1).result(0) + 10

    with run_inline(app):
        assert parent.submit().result(0) == 12


def test_an_error_of_a_child_goes_through_its_parent(app: Onetray) -> None:
    @app.task
    def child() -> None:
        raise PermanentError("the child's")

    @app.task
    def parent() -> None:
        child.submit()

    with run_inline(app) as harness:
        with pytest.raises(PermanentError, match="the child's"):
            parent.submit()
        assert [task.state for task in harness.engine.tasks()] == ["failed", "failed"]


def test_async_tasks_submit_async_tasks(app: Onetray) -> None:
    @app.task
    async def leaf(n: int) -> int:
        await yield_once()
        return n

    @app.task
    async def from_a_coroutine() -> int:
        return leaf.submit(n=1).result(0)

    @app.task
    async def awaited() -> int:
        return await (await leaf.aio.submit(n=2)).result(0)

    with run_inline(app):
        assert from_a_coroutine.submit().result(0) == 1
        assert awaited.submit().result(0) == 2


def test_many_coroutines_may_submit_at_once(app: Onetray) -> None:
    @app.task
    async def leaf(n: int) -> int:
        await yield_once()
        return n

    async def main() -> list[int]:
        jobs = await asyncio.gather(*(leaf.aio.submit(n=n) for n in range(10)))
        return [await job.result(0) for job in jobs]

    with run_inline(app):
        assert asyncio.run(main()) == list(range(10))


def test_of_many_submits_all_are_run_before_the_errors_are_told(app: Onetray) -> None:
    ran = []

    @app.task
    def odd(n: int) -> None:
        ran.append(n)
        if n % 2 == 0:
            raise ValueError(n)

    with run_inline(app):
        with pytest.raises(ExceptionGroup, match="2 of 4 jobs failed"):
            odd.submit_many([{"n": n} for n in range(4)])
        assert ran == [0, 1, 2, 3]


def test_a_delay_passes_at_once(app: Onetray) -> None:
    @app.task
    def later() -> str:
        return "now"

    with run_inline(app) as harness:
        before = harness.clock.now()
        assert later.options(delay_s=60).submit().result(0) == "now"
        assert harness.clock.now() - before == 60_000_000


def test_a_repeated_submit_runs_nothing(app: Onetray) -> None:
    ran = []

    @app.task
    def once() -> None:
        ran.append(ctx.id)

    with run_inline(app):
        first = once.options(idempotency_key="k").submit()
        assert once.options(idempotency_key="k").submit().id == first.id
    assert ran == [first.id]


def test_a_flow_runs_to_its_end(app: Onetray) -> None:
    flow = app.flow("sums")

    @flow.stage
    def numbers() -> list[int]:
        return [1, 2, 3]

    @flow.stage(each=numbers)
    def square(item: int) -> int:
        return item * item

    with run_inline(app):
        assert flow.submit().result(0) == {"numbers": [1, 2, 3], "square": [1, 4, 9]}


def test_a_flow_that_fails_raises_and_undoes(app: Onetray) -> None:
    undone = []
    flow = app.flow("trip")

    @flow.stage(compensate=lambda result: undone.append(result))
    def book() -> str:
        return "seat 4"

    @flow.stage
    def pay() -> None:
        raise PermanentError("no money")

    with run_inline(app), pytest.raises(PermanentError, match="no money"):
        flow.submit()
    assert undone == ["seat 4"]


def test_a_failure_that_a_flow_goes_on_after_is_not_raised(app: Onetray) -> None:
    flow = app.flow("mixed", roll_up="mixed")

    @flow.stage(each=[1, 2], on_failure="continue")
    def half(item: int) -> int:
        if item == 2:
            raise PermanentError("not this one")
        return item

    with run_inline(app):
        job = flow.submit()
        assert job.state == "partial"


def test_a_retried_job_runs_at_once_too(app: Onetray) -> None:
    fail = [True]

    @app.task
    def flaky() -> str:
        if fail:
            raise ValueError(fail.pop())
        return "well"

    with run_inline(app) as harness:
        with pytest.raises(ValueError, match="True"):
            flaky.submit()
        job = app.job(harness.engine.tasks()[0].id)
        assert job.retry().result(0) == "well"
