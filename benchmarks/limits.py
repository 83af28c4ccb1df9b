"""How fast the same rows can be written without an engine, in every way that is known to be fast.

Owns the ways and their rounds. What a limit writes is in limit.py. On PostgreSQL a batch may be claimed while
another is reported, on connections of their own, and a report may be fused with the next claim.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import Any

from benchmarks.checks import must_be_done, must_be_queued
from benchmarks.core import LIMITS, open_engine
from benchmarks.host import Host
from benchmarks.limit import Limit, drain_by_hand, prepare, submit_by_hand
from benchmarks.limit_postgres import PostgresLimit

SINGLE = 1_000
"""Transactions with one job each; no more than other measurements have jobs."""
Figures = dict[str, Any]
Drain = Callable[[Any, int], None]


def fused(limit: PostgresLimit, batch: int) -> None:
    """Report a batch and claim the next in one transaction, until nothing is left."""
    claimed = limit.claim(batch)
    while claimed:
        claimed = limit.report_and_claim(claimed, batch)


ONE_CONNECTION: dict[str, tuple[Drain, int]] = {"drain": (drain_by_hand, 1)}
WAYS: dict[str, dict[str, tuple[Drain, int]]] = {
    "sqlite": ONE_CONNECTION,
    "postgres": {
        **ONE_CONNECTION,
        "fused": (fused, 1),
        **{f"overlap_{n}": (drain_by_hand, n) for n in (2, 3, 4)},
        **{f"fused_overlap_{n}": (fused, n) for n in (2, 3, 4)},
    },
}
"""How to drain, and on how many connections at once, by name."""


def limits(host: Host, store: str, batch: int, jobs: int, rounds: int) -> Figures:
    """Jobs per second of a submit and of each way to drain: medians. The best way is named."""
    rates: dict[str, list[float]] = defaultdict(list)
    ways = list(WAYS[store])
    for n in range(rounds):
        turn = n % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            with host.database(store) as url:
                submit_s, drain_s = _round(store, url, way, batch, jobs)
            rates["submit"].append(jobs / submit_s)
            rates[way].append(jobs / drain_s)
    found: Figures = {name: round(median(some), 1) for name, some in rates.items()}
    best = max(ways, key=lambda way: float(found[way]))
    return {**found, "best": best, "best_drain": found[best]}


def single_submits(host: Host, store: str, jobs: int, rounds: int) -> Figures:
    """Jobs per second of one durable transaction after another, with one job each."""
    rates = []
    for _ in range(rounds):
        with host.database(store) as url:
            with closing(LIMITS[store](url)) as limit, _stopwatch() as took:
                submit_by_hand(limit, 1, jobs)
            with open_engine(url) as engine:
                must_be_queued(engine, jobs)
        rates.append(jobs / took[0])
    return {"submit": round(median(rates), 1)}


def _round(store: str, url: str, way: str, batch: int, jobs: int) -> tuple[float, float]:
    drain, connections = WAYS[store][way]
    numbers = prepare(url)
    with ExitStack() as stack:
        limits = [stack.enter_context(closing(LIMITS[store](url, numbers))) for _ in range(connections)]
        with _stopwatch() as submit_s:
            submit_by_hand(limits[0], batch, jobs)
        with _stopwatch() as drain_s:
            _drain_together(drain, limits, batch)
    with open_engine(url) as engine:
        must_be_done(engine, jobs)
    return submit_s[0], drain_s[0]


def _drain_together(drain: Drain, limits: list[Limit], batch: int) -> None:
    if len(limits) == 1:
        drain(limits[0], batch)
        return
    with ThreadPoolExecutor(len(limits)) as threads:
        for done in [threads.submit(drain, limit, batch) for limit in limits]:
            done.result()


@contextmanager
def _stopwatch() -> Iterator[list[float]]:
    """Holds the seconds that passed, afterwards."""
    took, began = [0.0], time.perf_counter()
    yield took
    took[0] = time.perf_counter() - began
