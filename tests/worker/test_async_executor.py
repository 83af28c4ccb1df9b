"""Async handlers that share the loop, and often an asyncio task: none of them notices another."""

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

Ends = list[list[tuple[Attempt, Report | None]]]
whose: ContextVar[str] = ContextVar("whose", default="nobody's")


@contextmanager
def floor_of(app: Onetray, concurrency: int) -> Iterator[tuple[Executor, Ends]]:
    """A floor without a worker around it, and what it tells, call by call."""
    ends: Ends = []
    floor = Executor(app, concurrency, ProcessPool(None, app), lambda ended: ends.append(list(ended)))
    floor.open()
    try:
        yield floor, ends
    finally:
        floor.close()


def runs_of(app: Onetray, task: TaskDefinition[Any, Any], *calls: dict[str, Any]) -> list[Attempt]:
    task.submit_many(calls)
    engine = app.engine
    claimed = engine.claim(task.queue, worker="w", limit=len(calls))
    return [Attempt(a, task, Reporter(engine, lambda *_: None), engine) for a in claimed]


def reported(ends: Ends) -> list[Any]:
    return [getattr(report, "result", report and report.verb) for batch in ends for _, report in batch]


def idle(floor: Executor) -> bool:
    return floor.wait_until_idle(time.monotonic() + WAIT_S)


def test_a_task_whose_lease_is_over_does_not_begin(app: Onetray) -> None:
    """This process was stopped for a while, and goes on before anybody has looked at the clock."""

    @app.task
    async def on_loop() -> str:
        return "begun"

    @app.task
    def in_thread() -> str:
        return "begun"

    with floor_of(app, 2) as (floor, ends):
        for task in (on_loop, in_thread):
            late, good = runs_of(app, task, {}, {})
            HeldLeases().take([late], time.monotonic() - late.assignment.lease_s - 1)
            HeldLeases().take([good], time.monotonic())
            floor.admit([late, good])
            assert idle(floor)
            assert (late.began, late.stop) == (None, LOST)
    assert sorted(reported(ends)) == ["begun", "begun", "release", "release"]


def test_what_a_handler_sets_in_its_context_no_other_handler_sees(app: Onetray) -> None:
    @app.task
    async def look(n: int, waits: bool) -> list[str]:
        seen = [whose.get()]
        whose.set(f"of {n}")
        if waits:
            await yield_once()
        return [*seen, whose.get(), ctx.id]

    jobs = look.submit_many([{"n": n, "waits": n % 3 == 0} for n in range(30)])
    with app.worker(concurrency=4):
        assert [job.result(WAIT_S) for job in jobs] == [["nobody's", f"of {n}", jobs[n].id] for n in range(30)]


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

    with floor_of(app, 5) as (floor, ends):
        runs = runs_of(app, wait, *[{"n": n} for n in range(5)])
        floor.admit(runs)
        wait_until(lambda: all(run.interrupt for run in runs))
        runs[2].ask_to_stop(CANCEL)
        wait_until(lambda: ends)
        assert [(run, report and report.verb) for run, report in ends[0]] == [(runs[2], "release")]
        gate.set()
        assert idle(floor)
    assert sorted(reported(ends)[1:]) == [0, 1, 3, 4]


def test_a_stop_that_comes_before_a_handler_first_waits_reaches_it_there_and_only_once(app: Onetray) -> None:
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
            await a_timer()
            seen.append("tidied up")
            raise

    with floor_of(app, 1) as (floor, ends):
        (run,) = runs_of(app, work, {})
        floor.admit([run])
        assert began.wait(WAIT_S)
        run.ask_to_stop(CANCEL)
        go.set()
        assert idle(floor)
    assert (seen, reported(ends)) == (["cancelled", "tidied up"], ["release"])


@pytest.mark.parametrize("waits", [False, True])
def test_a_handler_that_cancels_its_own_task_harms_no_other(app: Onetray, waits: bool) -> None:
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

    with floor_of(app, 1) as (floor, ends):
        floor.admit(runs_of(app, work, *[{"n": n} for n in range(6)]))
        assert idle(floor)
    assert reported(ends) == (["fail", 1, "fail", 3, "fail", 5] if waits else [0, 1, 2, 3, 4, 5])


def test_a_hook_that_cancels_itself_is_no_way_out_of_the_budget(app: Onetray) -> None:
    @app.task
    async def work() -> None:
        raise ValueError("no")

    @app.on_error
    async def hook(_: Any, error: BaseException) -> None:
        raise asyncio.CancelledError

    with floor_of(app, 1) as (floor, ends):
        floor.admit(runs_of(app, work, {}))
        assert idle(floor)
    assert reported(ends) == ["fail"]


def test_whoever_keeps_the_asyncio_task_of_a_handler_cannot_cancel_the_next_one_with_it(app: Onetray) -> None:
    cancelled: list[bool] = []

    @app.task
    async def work(n: int) -> int:
        if n == 0:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(0.005, lambda: cancelled.append(task.cancel()))
        else:
            await until(lambda: cancelled)
            await a_timer()
        return n

    with floor_of(app, 1) as (floor, ends):
        floor.admit(runs_of(app, work, {"n": 0}, {"n": 1}))
        assert idle(floor)
    assert reported(ends) == [0, 1]


def test_a_handler_that_cancels_all_there_is_on_the_loop_does_not_stop_the_worker(app: Onetray) -> None:
    @app.task
    async def work(n: int) -> int:
        if n == 1:
            for task in asyncio.all_tasks():
                task.cancel()
        await a_timer()
        return n

    with floor_of(app, 6) as (floor, ends):
        floor.admit(runs_of(app, work, *[{"n": n} for n in range(9)]))
        assert idle(floor)
    assert reported(ends) == ["fail", "fail", 2, 3, 4, 5, 6, 7, 8]


def test_a_handler_that_swallows_its_cancel_ends_as_it_likes_and_the_next_one_begins(app: Onetray) -> None:
    @app.task
    async def work(n: int) -> int:
        if n == 0:
            try:
                await forever()
            except asyncio.CancelledError:
                await yield_once()
        return n

    with floor_of(app, 1) as (floor, ends):
        runs = runs_of(app, work, {"n": 0}, {"n": 1})
        floor.admit(runs)
        wait_until(lambda: runs[0].interrupt is not None)
        runs[0].ask_to_stop(CANCEL)
        assert idle(floor)
    assert reported(ends) == [0, 1]


def test_timeouts_and_task_groups_work_in_handlers(app: Onetray) -> None:
    @app.task
    async def late(n: int) -> str:
        try:
            async with asyncio.timeout(0.005):
                await forever()
        except TimeoutError:
            await yield_once()
            return f"late {n}"
        return "odd"

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

    lates = late.submit_many([{"n": n} for n in range(10)])
    groups = group.submit_many([{"n": n} for n in range(10)])
    with app.worker(concurrency=3):
        assert [job.result(WAIT_S) for job in lates] == [f"late {n}" for n in range(10)]
        assert [job.result(WAIT_S) for job in groups] == [f"group {n}" for n in range(10)]


def test_as_many_handlers_wait_at_once_as_there_are_places_and_no_more(app: Onetray) -> None:
    here, most = 0, 0

    @app.task
    async def meet() -> None:
        nonlocal here, most
        here += 1
        most = max(most, here)
        async with asyncio.timeout(WAIT_S):
            await until(lambda: most >= 20)
        await yield_once()
        here -= 1

    with floor_of(app, 20) as (floor, ends):
        floor.admit(runs_of(app, meet, *[{}] * 60))
        assert idle(floor)
    assert (most, reported(ends)) == (20, [None] * 60)


def test_timers_and_waiting_handlers_get_their_turn_between_many_that_never_wait(app: Onetray) -> None:
    ended: list[str] = []

    @app.task
    async def work(n: int) -> None:
        if n == 0:
            await a_timer()
        else:
            time.sleep(0.001)
        ended.append("waited" if n == 0 else "did not")

    with floor_of(app, 200) as (floor, _):
        floor.admit(runs_of(app, work, *[{"n": n} for n in range(200)]))
        assert idle(floor)
    assert len(ended) == 200
    assert ended[-1] == "did not"


@pytest.mark.parametrize("concurrency", [1, 100])
def test_the_ends_of_many_short_handlers_are_told_together(app: Onetray, concurrency: int) -> None:
    @app.task
    async def work() -> None: ...

    with floor_of(app, concurrency) as (floor, ends):
        floor.admit(runs_of(app, work, *[{}] * 300))
        assert idle(floor)
        assert (floor.finished, len(reported(ends))) == (300, 300)
        assert len(ends) < 100


def test_whoever_claims_hears_of_it_before_the_loop_runs_dry(app: Onetray) -> None:
    go = threading.Event()

    @app.task
    async def work(n: int) -> None:
        if n == 15:
            assert go.wait(WAIT_S)

    with floor_of(app, 1) as (floor, _):
        runs = runs_of(app, work, *[{"n": n} for n in range(21)])
        with floor.changed:
            floor.admit(runs)
            assert floor.changed.wait(WAIT_S)
            assert 0 < len(floor.waiting) <= 10
        go.set()
        assert idle(floor)


def test_what_has_ended_is_told_though_the_next_handler_blocks_the_loop(app: Onetray) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    async def work(n: int) -> int:
        if n == 1:
            began.set()
            assert go.wait(WAIT_S)
        return n

    with floor_of(app, 2) as (floor, ends):
        floor.admit(runs_of(app, work, {"n": 0}, {"n": 1}))
        assert began.wait(WAIT_S)
        assert not floor.wait_until_idle(0)
        assert reported(ends) == [0]
        go.set()
        assert idle(floor)
    assert reported(ends) == [0, 1]


def test_handlers_that_have_ended_leave_no_lane_behind(app: Onetray) -> None:
    @app.task
    async def work(waits: bool) -> None:
        if waits:
            await a_timer()

    with floor_of(app, 10) as (floor, ends):
        floor.admit(runs_of(app, work, *[{"waits": n % 2 == 0} for n in range(100)]))
        assert idle(floor)
        assert floor.on_loop(_others()) == set()
        assert floor.lanes.open == {}
        ends.clear()
        gc.collect()
        assert [o for o in gc.get_objects() if isinstance(o, Attempt) and o.task is work] == []


async def _others() -> set[asyncio.Task[Any]]:
    await a_timer()
    task = asyncio.current_task()
    return {other for other in asyncio.all_tasks() if other is not task}


async def a_timer() -> None:
    """Wait for a timer of the loop."""
    await asyncio.sleep(0.005)
