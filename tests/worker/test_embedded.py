"""A worker inside a program leaves the interpreter's settings alone; one that runs a process restores them."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from onetray import Onetray
from tests.support.fleet import wait_until


def test_a_worker_inside_a_program_does_not_change_the_switch_interval(either_app: Onetray) -> None:
    @either_app.task
    async def work() -> None: ...

    before = sys.getswitchinterval(), gc.get_threshold()
    with either_app.worker():
        assert work.submit().wait(60) == "succeeded"
        assert (sys.getswitchinterval(), gc.get_threshold()) == before


def test_a_worker_that_runs_a_process_restores_its_settings(either_app: Onetray) -> None:
    worker = either_app.worker()
    seen: list[float] = []

    @either_app.task
    async def work() -> None:
        seen.append(sys.getswitchinterval())
        worker.ask_to_stop()

    before = sys.getswitchinterval(), gc.get_threshold()
    work.submit()
    try:
        worker.run()
    finally:
        gc.unfreeze()
    assert seen[0] <= 0.001
    assert (sys.getswitchinterval(), gc.get_threshold()) == before


@pytest.fixture
def pythons_own_gc() -> Iterator[None]:
    """As in a program: the tests look for garbage less often."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("pythons_own_gc")
def test_the_more_tasks_a_worker_holds_the_less_often_garbage_is_collected(either_app: Onetray) -> None:
    worker = either_app.worker(concurrency=300)
    thresholds: dict[int, int] = {}

    @either_app.task
    async def work(number: int) -> None:
        thresholds[number] = gc.get_threshold()[0]
        if number == 300:
            worker.ask_to_stop()

    work.submit_many({"number": number} for number in range(300))

    def submit_last() -> None:
        wait_until(lambda: len(thresholds) == 300 and not len(worker.held))
        work.submit(number=300)

    last = threading.Thread(target=submit_last)
    last.start()
    try:
        worker.run()
    finally:
        gc.unfreeze()
        last.join()
    assert max(thresholds.values()) >= 2_000 + 10 * 100
    assert thresholds[300] == 2_000 + 10
