"""What limits and fairness cost: a worker's drain with them as a share of one without; and claims beside a million
tasks that a limit holds back.

All variants take turns in each round, each on a fresh database, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.catalogue import Side
from benchmarks.checks import must_add_up, must_be_done, must_be_sound
from benchmarks.core import claim_and_report, must_pass, open_engine
from benchmarks.crowd import KIND, fill
from benchmarks.host import Host, Took, settle
from benchmarks.limit import WORKER
from benchmarks.sides import BULK
from benchmarks.stage import ROOT, Stage
from benchmarks.turns import Figures, drain, in_turns
from onetray.domain.commands import Submit
from onetray.domain.limits import Concurrency
from onetray.domain.policy import Policy
from onetray.engine import Engine

PLAIN, BEFORE = "plain", "before"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "concurrency_key": {"concurrency": [{"most": 20, "key": "tenant"}]},
    "concurrency_key_10": {"concurrency": [{"most": 10, "key": "tenant"}]},
    "concurrency_key_1": {"concurrency": [{"most": 1, "key": "tenant"}]},
    "concurrency_kind": {"concurrency": 1_000},
    "rate": {"rate": "1000000/s"},
    "fair": {"fair_by": "tenant"},
    BEFORE: {},
}
"""The rules of the task. There are 50 tenants; the limits are as large as what one worker runs at once, or larger, but
for 1 at once for each tenant."""
RULES = "ONETRAY_BENCH_RULES"
BATCH, SLICE = 100, 1_000
HELD_BACK = "held_back"
MOST_VERIFIED = 100_000
"""Of larger crowds only the events are counted: the verifier reads every row."""
LEASE_S = 36_000.0


def limited(
    host: Host, store: str, names: tuple[str, ...], jobs: int, rounds: int, before: Path | None,
    say: Callable[[str], None],
) -> dict[str, dict[str, float | None]]:  # fmt: skip
    """Jobs per second of a drain with each variant, as a share of the plain one of the same round; and `cpu_share`, how
    much less CPU time the plain one takes: other load on the machine does not change it much."""

    def measure(name: str, _: int) -> Figures:
        return _drain(host, store, name, jobs, before)

    measured, missing = in_turns([n for n in names if n != BEFORE or before], rounds, measure, say)
    assert not missing, missing
    return {
        name: {
            "per_s": _median(figures, "drain"),
            "share": round(median(_shares(figures, measured[PLAIN])), 3),
            "cpu_share": _cpu_share(measured[PLAIN], figures),
            "cpu_s_per_10k": _median(figures, "cpu_s_per_10k"),
            "db_cpu_s_per_10k": _median(figures, "db_cpu_s_per_10k"),
        }
        for name, figures in measured.items()
    }  # fmt: skip


def _median(figures: list[Figures], name: str) -> float | None:
    values = [value for each in figures if (value := each[name]) is not None]
    return round(median(values), 2) if values else None


def _shares(figures: list[Figures], plain: list[Figures]) -> list[float]:
    return [(a["drain"] or 0) / (b["drain"] or 1) for a, b in zip(figures, plain, strict=True)]


def _cpu_share(plain: list[Figures], figures: list[Figures]) -> float | None:
    """None if a drain was over before its CPU time was read for the first time."""
    theirs, ours = median(map(_cpu_s, plain)), median(map(_cpu_s, figures))
    return round(theirs / ours, 3) if theirs and ours else None


def _cpu_s(figures: Figures) -> float:
    """Of the worker and the database server, for ten thousand jobs."""
    return (figures["cpu_s_per_10k"] or 0.0) + (figures["db_cpu_s_per_10k"] or 0.0)


def _drain(host: Host, store: str, name: str, jobs: int, before: Path | None) -> Figures:
    mode = {RULES: json.dumps(VARIANTS[name])}
    if name == BEFORE:
        mode["PYTHONPATH"] = f"{before}/src:{ROOT}"
    with host.database(store) as url:
        with Stage(Side("limited", store), url, roles=("submit",), mode=mode) as stage:
            stage.ask(f"{BULK} {jobs}")
            settle(store, url)
            figures = drain(host, store, stage, jobs)
        if name != BEFORE:
            with open_engine(url) as engine:
                must_be_done(engine, jobs)
    return figures


def beside_held_back(
    host: Host, store: str, count: int, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Claims and reports beside so many tasks that a limit holds back, as a share of those without them: of tasks
    without a limit in the same queue, and of other tenants of the same kind."""
    with host.database(store) as crowded, host.database(store) as alone:
        fill(store, crowded, held_back, count, say)
        fill(store, alone, held_back, 1, say)
        with open_engine(crowded) as many, open_engine(alone) as few:
            found = {}
            for name, kind in (("without_limits", "other"), ("other_tenants", KIND)):
                pairs = [
                    (_took(host, store, many, kind), _took(host, store, few, kind)) for _ in range(rounds + 1)
                ][1:]  # fmt: skip
                found[name] = {
                    "share": round(median(b.wall_s for _, b in pairs) / median(a.wall_s for a, _ in pairs), 3),
                    "cpu_share": round(median(b.cpu_s for _, b in pairs) / median(a.cpu_s for a, _ in pairs), 3),
                    "per_s": round(SLICE / median(a.wall_s for a, _ in pairs), 1),
                    "alone_per_s": round(SLICE / median(b.wall_s for _, b in pairs), 1),
                }
            must_be_sound(few)
            (must_be_sound if count <= MOST_VERIFIED else must_add_up)(many)
    return found


def held_back(engine: Engine) -> None:
    """A task that waits for the only slot of its tenant."""
    engine.configure(KIND, Policy(concurrency=(Concurrency(1, key="tenant"),), lease_s=LEASE_S))
    engine.submit(KIND, {"tenant": "big"})
    (held,) = engine.claim(worker=WORKER)
    must_pass(engine, [Submit(kind=KIND, payload={"tenant": "big"})])
    assert engine.claim(worker=WORKER, limit=10) == [], held


def _took(host: Host, store: str, engine: Engine, kind: str) -> Took:
    """Submit a slice, and finish it."""
    tasks = [Submit(kind=kind, payload={"tenant": f"tenant-{n}"}) for n in range(SLICE)]
    must_pass(engine, tasks)
    done = 0
    with host.stopwatch(store) as took:
        while finished := claim_and_report(engine, BATCH):
            done += finished
    assert done == SLICE, done
    return took
