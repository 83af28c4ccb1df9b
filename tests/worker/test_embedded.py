"""A worker inside a program leaves the interpreter's settings alone; one that runs a process restores them."""

from __future__ import annotations

import gc
import sys

from onetray import Onetray


def test_a_worker_inside_a_program_does_not_change_the_switch_interval(either_app: Onetray) -> None:
    @either_app.task
    async def work() -> None: ...

    before = sys.getswitchinterval(), gc.get_threshold()
    with either_app.worker():
        assert work.submit().wait(60) == "succeeded"
        assert (sys.getswitchinterval(), gc.get_threshold()) == before


def test_a_worker_that_runs_a_process_restores_the_switch_interval(either_app: Onetray) -> None:
    worker = either_app.worker()
    seen: list[float] = []

    @either_app.task
    async def work() -> None:
        seen.append(sys.getswitchinterval())
        worker.ask_to_stop()

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    work.submit()
    try:
        worker.run()
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
    assert seen[0] <= 0.001
    assert sys.getswitchinterval() == before
