"""Children: what a task submits belongs to it, and is submitted once however often the task is tried."""

import asyncio

import pytest

from onetray import Onetray, ctx
from onetray.testing import Harness

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def child(app: Onetray):
    @app.task
    def child(n: int) -> int:
        return n

    return child


def test_a_child_carries_what_its_parent_carries(app: Onetray, child, anywhere: Harness) -> None:
    @app.task
    def parent() -> str:
        return ctx.submit(child, n=1).id

    job = parent.options(correlation_id="order-1", trace=TRACE).submit()
    anywhere.drain()
    born = app.job(job.result(0))
    assert (born.view().correlation_id, born.view().trace) == ("order-1", TRACE)
    assert next(iter(born.events())).cause == f"task {job.id}"
    assert {event.correlation_id for event in born.events()} == {"order-1"}


def test_a_child_of_a_job_without_a_correlation_gets_the_jobs_id(app: Onetray, child, harness: Harness) -> None:
    @app.task
    def parent() -> str:
        return child.submit(n=1).id

    job = parent.submit()
    harness.drain()
    assert app.job(job.result(0)).view().correlation_id == job.id


def test_what_a_child_is_told_itself_comes_first(app: Onetray, child, harness: Harness) -> None:
    @app.task
    def parent() -> str:
        return child.options(correlation_id="own", cause="a whim").submit(n=1).id

    job = parent.submit()
    harness.drain()
    born = app.job(job.result(0))
    assert (born.view().correlation_id, next(iter(born.events())).cause) == ("own", "a whim")


def test_a_second_attempt_submits_no_child_again(app: Onetray, child, anywhere: Harness) -> None:
    seen = []

    @app.task(retries=1, backoff_base_s=0)
    def parent() -> None:
        jobs = [child.submit(n=1), child.submit(n=2), child.submit(n=1)]
        jobs += child.submit_many([{"n": 3}, {"n": 3}])
        seen.append([job.id for job in jobs])
        if ctx.attempt == 1:
            raise RuntimeError("after the children")

    parent.submit()
    anywhere.drain()
    first, second = seen
    assert first == second
    assert len(set(first)) == 5
    assert len(anywhere.engine.tasks()) == 6


def test_async_tasks_have_children_too(app: Onetray, child, harness: Harness) -> None:
    @app.task(retries=1, backoff_base_s=0)
    async def parent() -> list[str]:
        jobs = await asyncio.gather(child.aio.submit(n=1), child.aio.submit(n=2))
        if ctx.attempt == 1:
            raise RuntimeError("after the children")
        return [job.id for job in jobs]

    job = parent.submit()
    harness.drain()
    assert len(set(job.result(0))) == 2
    assert len(harness.engine.tasks()) == 3


def test_children_of_different_queues_are_different(app: Onetray, child, harness: Harness) -> None:
    @app.task
    def parent() -> int:
        return len({child.submit(n=1).id, child.options(queue="other").submit(n=1).id})

    job = parent.submit()
    harness.drain()
    assert job.result(0) == 2


def test_a_flow_that_a_task_submits_is_its_child(app: Onetray, anywhere: Harness) -> None:
    seen = []
    flow = app.flow("inner")
    flow.stage(name="only")(lambda: 1)

    @app.task(retries=1, backoff_base_s=0)
    def parent() -> None:
        seen.append(flow.submit().id)
        if ctx.attempt == 1:
            raise RuntimeError("after the flow")

    job = parent.options(correlation_id="order-1", trace=TRACE).submit()
    anywhere.drain()
    assert job.state == "succeeded"
    assert seen[0] == seen[1]
    view = app.job(seen[0]).view()
    assert (view.correlation_id, view.trace) == ("order-1", TRACE)


def test_nothing_is_inherited_outside_of_a_task(app: Onetray, child, harness: Harness) -> None:
    @app.task
    def parent() -> None: ...

    parent.submit()
    harness.drain()
    job = child.submit(n=1)
    assert job.view().correlation_id == job.id
