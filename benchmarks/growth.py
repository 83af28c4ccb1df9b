"""How much slower claims and reports become as the database fills: 1.0 is not at all.

Owns the crowds that lie beside: tasks that cannot be claimed, tasks that can, tasks that have ended. A crowded
database and one that is almost empty drain the same thousand tasks in batches of 100, in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.checks import must_add_up, must_be_sound
from benchmarks.core import claim_and_report, must_pass, open_engine
from benchmarks.crowd import KIND, delayed, fill, finished, queued
from benchmarks.host import Host, size_of
from onetray.domain.commands import Submit
from onetray.engine import Engine

BATCH, SLICE = 100, 1_000
MOST_VERIFIED = 2_000_000
"""Of larger crowds only the events are counted: the verifier reads every row, which would take an hour."""
CROWDS = {"idle": delayed, "queued": queued, "finished": finished}
Figures = dict[str, float]


def beside(host: Host, store: str, case: str, count: int, rounds: int, say: Callable[[str], None]) -> Figures:
    """The rate of claim + report beside a crowd, and as a share of that without one."""
    with host.database(store) as crowded, host.database(store) as alone:
        fill(store, crowded, CROWDS[case], count, say)
        size = size_of(store, crowded) or 0
        with open_engine(crowded) as many, open_engine(alone) as few:
            for engine in (many, few):
                _submit(engine)
            # The first round warms up; the two take turns, so that what else the machine does hits both.
            pairs = [(_per_s(host, store, many), _per_s(host, store, few)) for _ in range(rounds + 1)][1:]
            must_be_sound(few)
            (must_be_sound if count <= MOST_VERIFIED else must_add_up)(many)
    rate, rate_alone = median(a for a, _ in pairs), median(b for _, b in pairs)
    return {
        "share": round(rate / rate_alone, 3),
        "per_s": round(rate, 1),
        "alone_per_s": round(rate_alone, 1),
        "mib": round(size / 2**20, 1),
    }


def _per_s(host: Host, store: str, engine: Engine) -> float:
    """Finish a slice, then put as many back."""
    with host.stopwatch(store) as took:
        for _ in range(SLICE // BATCH):
            claim_and_report(engine, BATCH)
    _submit(engine)
    return SLICE / took.wall_s


def _submit(engine: Engine) -> None:
    must_pass(engine, [Submit(kind=KIND, payload={"number": n}) for n in range(SLICE)])
