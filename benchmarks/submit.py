"""Single submits through the public API, one caller and many, beside one hand-written transaction after another.

Owns the callers. Each way of submitting takes its turn in each round on a fresh database; a submit has returned only
when its job is durable, in every way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.checks import must_be_queued
from benchmarks.core import LIMITS, open_engine
from benchmarks.figures import percentile
from benchmarks.host import Host
from benchmarks.limit import prepare
from benchmarks.noop import app, noop

WARM_UP = 5
BY_HAND, ONE, THREADS, AIO = "by_hand", "one", "threads", "aio"
WAYS = (BY_HAND, ONE, THREADS, AIO)
Figures = dict[str, dict[str, float]]


@dataclass
class Calls:
    """How long submits took: all of them together, and each."""

    rates: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def add(self, wall_s: float, waits_s: list[float]) -> None:
        self.rates.append(len(waits_s) / wall_s)
        self.waits_s += waits_s


def submit(host: Host, store: str, jobs: int, callers: int, each: int, rounds: int) -> Figures:
    """The medians of each way. One caller is set beside the transactions by hand, many callers beside one."""
    measured = {way: Calls() for way in WAYS}
    for n in range(rounds):
        turn = n % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            with host.database(store) as url:
                measured[way].add(*_round(way, store, url, jobs, callers, each))
    found = {way: _figures(calls) for way, calls in measured.items()}
    found[ONE]["to_by_hand"] = round(found[ONE]["per_s"] / found[BY_HAND]["per_s"], 3)
    for way in (THREADS, AIO):
        found[way]["to_one"] = round(found[way]["per_s"] / found[ONE]["per_s"], 3)
    return found


def _round(way: str, store: str, url: str, jobs: int, callers: int, each: int) -> tuple[float, list[float]]:
    if way == BY_HAND:
        took = _by_hand(store, url, jobs)
    else:
        prepare(url)
        app.database = url
        with app:
            for number in range(WARM_UP):
                noop.submit(number=number)
            took = _through_the_api(way, jobs, callers, each)
    with open_engine(url) as engine:
        must_be_queued(engine, WARM_UP + len(took[1]))
    return took


def _by_hand(store: str, url: str, jobs: int) -> tuple[float, list[float]]:
    limit = LIMITS[store](url)
    try:
        for number in range(WARM_UP):
            limit.submit([{"number": number}])
        return _one_after_another(lambda number: limit.submit([{"number": number}]), jobs)
    finally:
        limit.close()


def _through_the_api(way: str, jobs: int, callers: int, each: int) -> tuple[float, list[float]]:
    if way == ONE:
        return _one_after_another(lambda number: noop.submit(number=number), jobs)
    if way == THREADS:
        return _from_threads(lambda number: noop.submit(number=number), callers, each)
    return asyncio.run(_from_coroutines(lambda number: noop.aio.submit(number=number), callers, each))


def _one_after_another(call: Callable[[int], object], jobs: int) -> tuple[float, list[float]]:
    began = time.perf_counter()
    waits = [_timed(partial(call, number)) for number in range(jobs)]
    return time.perf_counter() - began, waits


def _from_threads(call: Callable[[int], object], callers: int, each: int) -> tuple[float, list[float]]:
    """So many threads, each with its own submits one after another; all begin together."""
    waits: list[list[float]] = []
    ready = threading.Barrier(callers + 1)

    def caller() -> None:
        ready.wait()
        # Added at the end and at once: a caller that failed is missed by the count of jobs.
        waits.append(_one_after_another(call, each)[1])

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    assert len(waits) == callers, f"only {len(waits)} of {callers} callers came through"
    return took, [wait for some in waits for wait in some]


async def _from_coroutines(
    call: Callable[[int], Awaitable[object]], callers: int, each: int
) -> tuple[float, list[float]]:
    async def caller() -> list[float]:
        waits = []
        for number in range(each):
            began = time.perf_counter()
            await call(number)
            waits.append(time.perf_counter() - began)
        return waits

    began = time.perf_counter()
    found = await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - began, [wait for some in found for wait in some]


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _figures(calls: Calls) -> dict[str, float]:
    ms = [wait * 1000 for wait in calls.waits_s]
    return {
        "per_s": round(median(calls.rates), 1),
        "p50_ms": round(percentile(ms, 50), 3),
        "p99_ms": round(percentile(ms, 99), 3),
    }
