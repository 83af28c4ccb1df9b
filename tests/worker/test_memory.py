"""A worker holds what it works on, and frees what it has done."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace

from onetray import Onetray
from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.engine import Engine
from tests.support.waits import wait_until


def test_a_batch_leaves_no_cycles_behind(engine: Engine) -> None:
    """Its claimed tasks are freed when it ends. Those of cycles stay until all objects of the process are looked at."""
    engine.run([Submit(kind="noop", payload={"n": n}) for n in range(20)])
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(2):
            claimed = engine.run([Claim(worker="w", limit=10)])[0].unwrap()
            engine.run([Succeed(**ticket(a)) for a in claimed])
        del claimed
        gc.collect()
        left = Counter(type(o).__name__ for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left["Assignment"], left
    assert not left["BatchContext"], left


def test_a_worker_claims_no_more_while_its_reports_wait(either_app: Onetray) -> None:
    """Handlers may be faster than the database: what is done and not reported does not grow without end."""
    waiting: list[int] = []

    @either_app.task
    async def noop(number: int) -> None:
        waiting.append(worker.reporter.waiting_successes())

    noop.submit_many([{"number": n} for n in range(3_000)])
    worker = either_app.worker(concurrency=10)
    # Each report carries a claim of ten times as many tasks.
    worker.tuning = replace(
        worker.tuning, max_prefetch=200, max_unreported=200, max_claim=100, report_batch=10, backlog=10
    )
    worker.start()
    try:
        wait_until(lambda: len(waiting) == 3_000)
    finally:
        worker.stop()
    assert max(waiting) < 1_000, max(waiting)
