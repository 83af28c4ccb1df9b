"""How the cost of a finished task grows with its stage: 1.0 is not at all.

Owns the two stages that are compared, one of a thousand tasks and one of a hundred times as many. Both are drained in
batches of 100, in turns: a thousand tasks of the large one, then a whole small flow.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.checks import must_be_sound
from benchmarks.core import claim_and_report, must_pass, open_engine
from benchmarks.host import Host, Took
from onetray.domain.commands import Submit
from onetray.domain.flow import StageSpec, TaskSpec
from onetray.engine import Engine

BATCH, SLICE = 100, 1_000


def flows(host: Host, store: str, size: int) -> dict[str, float]:
    """Microseconds for each finished task in a small stage and in one of `size` tasks, and beside single tasks.

    `progress_growth` is what asking for the progress costs with `size` tasks, as a multiple of that with a thousand.
    """
    small: list[Took] = []
    large: list[Took] = []
    single: list[Took] = []
    with host.database(store) as url, open_engine(url) as engine:
        big = _flow(engine, "large", size)
        beside = _flow(engine, "beside", SLICE)
        looks = [(_look(engine, big), _look(engine, beside)) for _ in range(40)]
        for n in range(size // SLICE):
            large.append(_drain(host, store, engine, "large"))
            # As often as is needed for a steady median; the two take turns, so that other work hits both.
            if n % max(1, size // SLICE // 20) == 0:
                _flow(engine, "small", SLICE)
                small.append(_drain(host, store, engine, "small"))
                must_pass(engine, [Submit(kind="noop", queue="single") for _ in range(SLICE)])
                single.append(_drain(host, store, engine, "single"))
        assert engine.flow(big).state == "succeeded", engine.explain(big)
        assert engine.progress(big).counts.succeeded == size
        must_be_sound(engine)
    cost = {name: _us(took) for name, took in (("small", small), ("large", large), ("single", single))}
    return {
        **{f"us_{name}": round(us, 1) for name, us in cost.items()},
        "growth": round(cost["large"] / cost["small"], 3),
        "beside_single": round(cost["small"] / cost["single"], 3),
        "progress_growth": round(median(a for a, _ in looks) / median(b for _, b in looks), 3),
    }


def _look(engine: Engine, flow: str) -> float:
    """Seconds that it takes to ask how far a flow is."""
    began = time.perf_counter()
    engine.progress(flow)
    return time.perf_counter() - began


def _us(took: list[Took]) -> float:
    return median(t.wall_s for t in took) / SLICE * 1e6


def _flow(engine: Engine, queue: str, size: int) -> str:
    """A flow of one stage with so many tasks, all of them claimable."""
    flow = engine.submit_flow(queue, [StageSpec("only", sealed=False)])
    for start in range(0, size, SLICE):
        count = min(SLICE, size - start)
        engine.add_tasks(flow.stages[0], [TaskSpec("noop", {"i": i}, queue=queue) for i in range(count)])
    engine.seal_flow(flow.id)
    return flow.id


def _drain(host: Host, store: str, engine: Engine, queue: str) -> Took:
    """Claim and finish a slice."""
    with host.stopwatch(store) as took:
        for _ in range(SLICE // BATCH):
            claim_and_report(engine, BATCH, queue)
    return took
