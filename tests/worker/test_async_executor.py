"""Async handlers that share the event loop, and often an asyncio task, do not affect each other."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from onetray import Onetray, ctx
from onetray.app.tasks import TaskDefinition
from onetray.domain.commands import Report
from onetray.worker.attempt import CANCEL, LOST, Attempt
from onetray.worker.executor import Executor
from onetray.worker.leases import HeldLeases
from onetray.worker.process_pool import ProcessPool
from onetray.worker.reporter import Reporter
from tests.support.waits import forever, until, wait_until, yield_once

WAIT_S = 60.0

Reported = list[list[tuple[Attempt, Report | None]]]
owner_var: ContextVar[str] = ContextVar("whose", default="unset")


@contextmanager
def open_executor(app: Onetray, concurrency: int) -> Iterator[tuple[Executor, Reported]]:
    """An executor without a worker, and the attempts that it reports, call by call."""
    reported: Reported = []
    executor = Executor(app, concurrency, ProcessPool(None, app), lambda ended: reported.append(list(ended)))
    executor.open()
    try:
        yield executor, reported
    finally:
        executor.close()


def attempts_of(app: Onetray, task: TaskDefinition[Any, Any], *calls: dict[str, Any]) -> list[Attempt]:
    task.submit_many(calls)
    engine = app.engine
    claimed = engine.claim(task.queue, worker="w", limit=len(calls))
    return [Attempt(a, task, Reporter(engine, lambda *_: None), engine) for a in claimed]


def outcomes(reported: Reported) -> list[Any]:
    return [getattr(report, "result", report and report.verb) for batch in reported for _, report in batch]


def is_idle(executor: Executor) -> bool:
    return executor.wait_until_idle(time.monotonic() + WAIT_S)


def test_a_task_whose_lease_is_over_does_not_begin(app: Onetray) -> None:
    """The process was suspended, and continues before the heartbeat has checked the clock."""

    @app.task
    async def on_loop() -> str:
        return "begun"

    @app.task
    def in_thread() -> str:
        return "begun"

    with open_executor(app, 2) as (executor, reported):
        for task in (on_loop, in_thread):
            expired, valid = attempts_of(app, task, {}, {})
            HeldLeases().add([expired], time.monotonic() - expired.assignment.lease_s - 1)
            HeldLeases().add([valid], time.monotonic())
            executor.admit([expired, valid])
            assert is_idle(executor)
            assert (expired.began_at, expired.stop_reason) == (None, LOST)
    assert sorted(outcomes(reported)) == ["begun", "begun", "release", "release"]


def test_no_handler_sees_the_context_variables_of_another(app: Onetray) -> None:
    @app.task
    async def look(n: int, waits: bool) -> list[str]:
        seen = [owner_var.get()]
        owner_var.set(f"of {n}")
        if waits:
            await yield_once()
        return [*seen, owner_var.get(), ctx.id]

    jobs = look.submit_many([{"n": n, "waits": n % 3 == 0} for n in range(30)])
    with app.worker(concurrency=4):
        assert [job.result(WAIT_S) for job in jobs] == [["unset", f"of {n}", jobs[n].id] for n in range(30)]


def test_a_child_task_sees_the_context_of_the_handler_that_left_it_behind(app: Onetray) -> None:
    seen: list[str] = []
    done, others_are_done = threading.Event(), threading.Event()

    @app.task
    async def leave() -> None:
        async def later() -> None:
            await until(others_are_done.is_set)
            seen.append(ctx.id)
            done.set()

        kept.append(asyncio.create_task(later()))

    @app.task
    async def other() -> None: ...

    kept: list[asyncio.Task[None]] = []
    job = leave.submit()
    others = other.submit_many([{}] * 20)
    with app.worker():
        assert [j.wait(WAIT_S) for j in (job, *others)] == ["succeeded"] * 21
        others_are_done.set()
        assert done.wait(WAIT_S)
    assert seen == [job.id]


def test_a_stop_of_one_handler_stops_no_other(app: Onetray) -> None:
    gate = threading.Event()

    @app.task
    async def wait(n: int) -> int:
        await until(gate.is_set)
        return n

    with open_executor(app, 5) as (executor, reported):
        attempts = attempts_of(app, wait, *[{"n": n} for n in range(5)])
        executor.admit(attempts)
        wait_until(lambda: all(attempt.interrupt for attempt in attempts))
        attempts[2].ask_to_stop(CANCEL)
        wait_until(lambda: reported)
        assert [(attempt, report and report.verb) for attempt, report in reported[0]] == [(attempts[2], "release")]
        gate.set()
        assert is_idle(executor)
    assert sorted(outcomes(reported)[1:]) == [0, 1, 3, 4]


def test_a_stop_before_the_first_await_of_a_handler_cancels_it_there_and_only_once(app: Onetray) -> None:
    began, go = threading.Event(), threading.Event()
    seen: list[str] = []

    @app.task
    async def work() -> None:
        began.set()
        assert go.wait(WAIT_S)
        try:
            await forever()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await short_sleep()
            seen.append("cleaned up")
            raise

    with open_executor(app, 1) as (executor, reported):
        (attempt,) = attempts_of(app, work, {})
        executor.admit([attempt])
        assert began.wait(WAIT_S)
        attempt.ask_to_stop(CANCEL)
        go.set()
        assert is_idle(executor)
    assert (seen, outcomes(reported)) == (["cancelled", "cleaned up"], ["release"])


@pytest.mark.parametrize("waits", [False, True])
def test_a_handler_that_cancels_its_own_task_affects_no_other(app: Onetray, waits: bool) -> None:
    @app.task
    async def work(n: int) -> int:
        if n % 2 == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if not waits:
                return n
        await yield_once()
        return n

    with open_executor(app, 1) as (executor, reported):
        executor.admit(attempts_of(app, work, *[{"n": n} for n in range(6)]))
        assert is_idle(executor)
    assert outcomes(reported) == (["fail", 1, "fail", 3, "fail", 5] if waits else [0, 1, 2, 3, 4, 5])


def test_an_on_error_hook_that_raises_cancelled_error_does_not_save_the_attempt(app: Onetray) -> None:
    @app.task
    async def work() -> None:
        raise ValueError("no")

    @app.on_error
    async def hook(_: Any, error: BaseException) -> None:
        raise asyncio.CancelledError

    with open_executor(app, 1) as (executor, reported):
        executor.admit(attempts_of(app, work, {}))
        assert is_idle(executor)
    assert outcomes(reported) == ["fail"]


def test_a_kept_reference_to_the_asyncio_task_of_a_handler_cannot_cancel_the_next_one(app: Onetray) -> None:
    cancelled: list[bool] = []

    @app.task
    async def work(n: int) -> int:
        if n == 0:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(0.005, lambda: cancelled.append(task.cancel()))
        else:
            await until(lambda: cancelled)
            await short_sleep()
        return n

    with open_executor(app, 1) as (executor, reported):
        executor.admit(attempts_of(app, work, {"n": 0}, {"n": 1}))
        assert is_idle(executor)
    assert outcomes(reported) == [0, 1]


def test_a_handler_that_cancels_all_tasks_of_the_loop_does_not_stop_the_worker(app: Onetray) -> None:
    @app.task
    async def work(n: int) -> int:
        if n == 1:
            for task in asyncio.all_tasks():
                task.cancel()
        await short_sleep()
        return n

    with open_executor(app, 6) as (executor, reported):
        executor.admit(attempts_of(app, work, *[{"n": n} for n in range(9)]))
        assert is_idle(executor)
    assert outcomes(reported) == ["fail", "fail", 2, 3, 4, 5, 6, 7, 8]


def test_a_handler_that_suppresses_its_cancel_can_succeed_and_the_next_one_begins(app: Onetray) -> None:
    @app.task
    async def work(n: int) -> int:
        if n == 0:
            try:
                await forever()
            except asyncio.CancelledError:
                await yield_once()
        return n

    with open_executor(app, 1) as (executor, reported):
        attempts = attempts_of(app, work, {"n": 0}, {"n": 1})
        executor.admit(attempts)
        wait_until(lambda: attempts[0].interrupt is not None)
        attempts[0].ask_to_stop(CANCEL)
        assert is_idle(executor)
    assert outcomes(reported) == [0, 1]


def test_timeouts_and_task_groups_work_in_handlers(app: Onetray) -> None:
    @app.task
    async def expired(n: int) -> str:
        try:
            async with asyncio.timeout(0.005):
                await forever()
        except TimeoutError:
            await yield_once()
            return f"late {n}"
        return "unexpected"

    @app.task
    async def group(n: int) -> str:
        async def fail() -> None:
            raise ValueError(n)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(forever())
                tasks.create_task(fail())
        except* ValueError:
            pass
        await yield_once()
        return f"group {n}"

    lates = expired.submit_many([{"n": n} for n in range(10)])
    groups = group.submit_many([{"n": n} for n in range(10)])
    with app.worker(concurrency=3):
        assert [job.result(WAIT_S) for job in lates] == [f"late {n}" for n in range(10)]
        assert [job.result(WAIT_S) for job in groups] == [f"group {n}" for n in range(10)]


def test_as_many_handlers_are_suspended_at_once_as_the_concurrency_allows(app: Onetray) -> None:
    active, highest = 0, 0

    @app.task
    async def meet() -> None:
        nonlocal active, highest
        active += 1
        highest = max(highest, active)
        async with asyncio.timeout(WAIT_S):
            await until(lambda: highest >= 20)
        await yield_once()
        active -= 1

    with open_executor(app, 20) as (executor, reported):
        executor.admit(attempts_of(app, meet, *[{}] * 60))
        assert is_idle(executor)
    assert (highest, outcomes(reported)) == (20, [None] * 60)


def test_timers_and_suspended_handlers_get_their_turn_between_many_that_never_await(app: Onetray) -> None:
    ended: list[str] = []

    @app.task
    async def work(n: int) -> None:
        if n == 0:
            await short_sleep()
        else:
            time.sleep(0.001)
        ended.append("waited" if n == 0 else "did not")

    with open_executor(app, 200) as (executor, _):
        executor.admit(attempts_of(app, work, *[{"n": n} for n in range(200)]))
        assert is_idle(executor)
    assert len(ended) == 200
    assert ended[-1] == "did not"


@pytest.mark.parametrize("concurrency", [1, 100])
def test_the_outcomes_of_many_short_handlers_are_reported_together(app: Onetray, concurrency: int) -> None:
    @app.task
    async def work() -> None: ...

    with open_executor(app, concurrency) as (executor, reported):
        executor.admit(attempts_of(app, work, *[{}] * 300))
        assert is_idle(executor)
        assert (executor.finished, len(outcomes(reported))) == (300, 300)
        assert len(reported) < 100


def test_the_claimer_is_notified_before_the_loop_runs_out_of_attempts(app: Onetray) -> None:
    go = threading.Event()

    @app.task
    async def work(n: int) -> None:
        if n == 15:
            assert go.wait(WAIT_S)

    with open_executor(app, 1) as (executor, _):
        attempts = attempts_of(app, work, *[{"n": n} for n in range(21)])
        with executor.changed:
            executor.admit(attempts)
            assert executor.changed.wait(WAIT_S)
            assert 0 < len(executor.waiting) <= 10
        go.set()
        assert is_idle(executor)


def test_an_outcome_is_reported_although_the_next_handler_blocks_the_loop(app: Onetray) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    async def work(n: int) -> int:
        if n == 1:
            began.set()
            assert go.wait(WAIT_S)
        return n

    with open_executor(app, 2) as (executor, reported):
        executor.admit(attempts_of(app, work, {"n": 0}, {"n": 1}))
        assert began.wait(WAIT_S)
        assert not executor.wait_until_idle(0)
        assert outcomes(reported) == [0]
        go.set()
        assert is_idle(executor)
    assert outcomes(reported) == [0, 1]


def test_handlers_that_have_ended_leave_no_asyncio_task_behind(app: Onetray) -> None:
    @app.task
    async def work(waits: bool) -> None:
        if waits:
            await short_sleep()

    with open_executor(app, 10) as (executor, reported):
        executor.admit(attempts_of(app, work, *[{"waits": n % 2 == 0} for n in range(100)]))
        assert is_idle(executor)
        assert executor.on_loop(_other_tasks()) == set()
        assert executor.async_executor.open == {}
        reported.clear()
        gc.collect()
        assert [o for o in gc.get_objects() if isinstance(o, Attempt) and o.task is work] == []


async def _other_tasks() -> set[asyncio.Task[Any]]:
    await short_sleep()
    task = asyncio.current_task()
    return {other for other in asyncio.all_tasks() if other is not task}


async def short_sleep() -> None:
    """Wait for a timer of the loop."""
    await asyncio.sleep(0.005)
