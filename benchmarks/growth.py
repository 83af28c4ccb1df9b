"""How much slower claims become when many tasks that cannot be claimed lie beside: 1.0 is not at all.

Owns the two crowds that are compared. Both drain the same thousand tasks in batches of 100, in turns.
"""

from __future__ import annotations

from statistics import median

from benchmarks.core import drain
from benchmarks.host import Host
from onetray.commands import Submit
from onetray.engine import Engine
from tests.support.crowds import CLAIMABLE, fill

BATCH = 100


def growth(host: Host, store: str, idle: int, rounds: int) -> float:
    """Claims per second beside `idle` tasks that cannot be claimed, as a share of those without them."""
    with host.database(store) as crowded, host.database(store) as alone:
        fill(crowded, idle)
        fill(alone, 0)
        with Engine.open(crowded) as beside, Engine.open(alone) as without:
            # The first round warms up; the two take turns, so that what else the machine does hits both.
            pairs = [(_per_s(host, store, beside), _per_s(host, store, without)) for _ in range(rounds + 1)][1:]
    return round(median(a for a, _ in pairs) / median(b for _, b in pairs), 3)


def _per_s(host: Host, store: str, engine: Engine) -> float:
    """Drain what can be claimed, then put as many back."""
    with host.stopwatch(store) as took:
        drain(engine, BATCH)
    for verdict in engine.run([Submit(kind="noop", payload={"i": i}) for i in range(CLAIMABLE)]):
        verdict.unwrap()
    return CLAIMABLE / took.wall_s
