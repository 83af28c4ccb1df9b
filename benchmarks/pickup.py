"""How soon an idle worker begins: from just before the submit call to the first line of the handler.

Owns the rounds. All sides take turns in each round, on a fresh database, so that what else the machine does hits
all of them; only one is awake at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median

from benchmarks.catalogue import OURS, PEERS, SIDES
from benchmarks.figures import percentile
from benchmarks.host import Host
from benchmarks.stage import Stage

GAP_S = (0.05, 0.15)
"""Between a handler's begin and the next submit: long enough for everything to be idle again."""
WARM_UP = 5


def pickup(host: Host, sides: Sequence[str], submits: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds for each side, and ours as a share of each peer's."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for n in range(rounds):
        turn = n % len(sides)
        for name in [*sides[turn:], *sides[:turn]]:
            took[name] += _round(host, name, -(-submits // rounds), random.Random(n))
    found = {name: _figures(seconds) for name, seconds in took.items()}
    for name in set(OURS) & set(found):
        for peer in set(PEERS) & set(found):
            found[name][f"to_{peer}"] = round(median(took[name]) / median(took[peer]), 3)
    return found


def _round(host: Host, name: str, submits: int, chance: random.Random) -> list[float]:
    side = SIDES[name]
    with host.database(side.store) as url, Stage(side, url) as stage:
        took = []
        for number in range(-WARM_UP, submits):
            took.append(stage.pickup_s(number))
            time.sleep(chance.uniform(*GAP_S))
        return took[WARM_UP:]


def _figures(seconds: list[float]) -> dict[str, float]:
    ms = [s * 1000 for s in seconds]
    return {
        "median_ms": round(median(ms), 2),
        "p95_ms": round(percentile(ms, 95), 2),
        "p99_ms": round(percentile(ms, 99), 2),
        "max_ms": round(max(ms), 2),
    }
