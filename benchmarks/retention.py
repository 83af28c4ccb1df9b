"""What a drain loses while old jobs are removed beside it.

Owns the turns: drains with the removal beside them, and without, on one database with many old jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.checks import must_be_sound
from benchmarks.core import drain, must_pass, open_engine
from benchmarks.crowd import fill, finished
from benchmarks.host import Host
from onetray.domain.clock import VirtualClock
from onetray.domain.commands import Submit
from onetray.engine import Engine

BATCH = 100
KEEP_S = 30 * 86_400
"""The old jobs ended in 2023."""


def retention(host: Host, store: str, old: int, jobs: int, rounds: int, say: Callable[[str], None]) -> dict[str, float]:
    """Jobs per second and CPU time of drains, with and without the removal of old jobs beside them."""
    with host.database(store) as url:
        fill(store, url, finished, old, say, VirtualClock())
        with open_engine(url) as engine:
            _drain(host, store, engine, jobs, False)
            turns: dict[bool, list[dict[str, float]]] = {True: [], False: []}
            for n in range(rounds):
                for beside in (True, False) if n % 2 == 0 else (False, True):
                    turns[beside].append(_drain(host, store, engine, jobs, beside))
            left = _old_jobs(engine)
            must_be_sound(engine)
    without, removing = _medians(turns[False]), _medians(turns[True])
    return {
        "drain": round(without["per_s"], 1), "drain_beside": round(removing["per_s"], 1),
        "ratio": round(removing["per_s"] / without["per_s"], 3),
        "cpu_us": round(without["cpu_us"], 1), "cpu_us_beside": round(removing["cpu_us"], 1),
        "removed_per_s": round(removing["removed_per_s"], 1), "old_left": left,
    }  # fmt: skip


def _drain(host: Host, store: str, engine: Engine, jobs: int, beside: bool) -> dict[str, float]:
    for start in range(0, jobs, BATCH):
        must_pass(engine, [Submit(kind="noop", payload={"i": i}) for i in range(start, min(start + BATCH, jobs))])
    janitor, before = engine.janitor(retention_s=KEEP_S if beside else None), _old_jobs(engine)
    with host.stopwatch(store) as took:
        janitor.start()
        drain(engine, BATCH)
        janitor.stop()
    removed = before - _old_jobs(engine)
    return {"per_s": jobs / took.wall_s, "cpu_us": took.cpu_s / jobs * 1e6, "removed_per_s": removed / took.wall_s}


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(turn[name] for turn in turns) for name in turns[0]}


def _old_jobs(engine: Engine) -> int:
    before = engine.store.now() - KEEP_S * 1_000_000
    found = engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE created_at < :before", before=before)
    return int(found[0][0])
