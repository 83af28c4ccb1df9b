"""A flow of many stages through a real worker, beside as many single tasks.

Owns the two that are compared; they take turns, each on a fresh database.
"""

from __future__ import annotations

from statistics import median

from benchmarks.checks import must_have_ended
from benchmarks.core import open_engine
from benchmarks.fleet import KIND, fleet, lay_out, let_go, seconds_of_work, until_ended
from benchmarks.host import Host
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.domain.lifecycle import SUCCEEDED
from onetray.engine import Engine

QUEUE = "default"


def flow(host: Host, store: str, stages: int, size: int, rounds: int) -> dict[str, float]:
    """Tasks per second of a flow and of single tasks, from the first claim to the last end, and their ratio."""
    rates: dict[str, list[float]] = {"flow": [], "single": []}
    for n in range(rounds):
        for way in sorted(rates, reverse=n % 2 == 1):
            rates[way].append(_round(host, store, stages, size, whole=way == "flow"))
    found = {way: round(median(some), 1) for way, some in rates.items()}
    return {**found, "ratio": round(found["flow"] / found["single"], 3)}


def _round(host: Host, store: str, stages: int, size: int, whole: bool) -> float:
    queues, tasks = {QUEUE: 0 if whole else stages * size}, stages * size
    with host.database(store) as url, open_engine(url) as engine:
        lay_out(engine, queues)
        flow = _submit(engine, stages, size) if whole else None
        with fleet(engine, url) as processes:
            let_go(engine, queues)
            until_ended(engine, processes)
        must_have_ended(engine, tasks)
        assert flow is None or engine.flow(flow).state == SUCCEEDED, engine.explain(flow)
        return tasks / seconds_of_work(engine)


def _submit(engine: Engine, stages: int, size: int) -> str:
    tasks = [TaskSpec(KIND, {"number": number}, queue=QUEUE) for number in range(size)]
    return engine.submit_flow("bench", [StageSpec(f"stage {n + 1}", tasks) for n in range(stages)]).id
