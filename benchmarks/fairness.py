"""How long ten tasks of a small tenant wait beside a million of a big one, with and without `fair_by`.

The tasks of the small tenant are submitted last. One caller claims and reports batches of 100 until all ten are
claimed. Without `fair_by` that would be the whole crowd: after some seconds the rest is computed from the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.core import must_pass, open_engine
from benchmarks.crowd import KIND, fill
from benchmarks.host import Host
from benchmarks.limit import WORKER
from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.domain.policy import Policy
from onetray.engine import Engine

BATCH, SMALL = 100, 10
CASES = {"fair": Policy(fair_by="tenant"), "first_in_first_out": Policy()}


def fairness(
    host: Host, store: str, big: int, seconds: float, say: Callable[[str], None]
) -> dict[str, dict[str, float | bool]]:  # fmt: skip
    """For each case, how long until the first and the last task of the small tenant are claimed."""
    return {name: _wait(host, store, policy, big, seconds, say) for name, policy in CASES.items()}


def _wait(
    host: Host, store: str, policy: Policy, big: int, seconds: float, say: Callable[[str], None]
) -> dict[str, float | bool]:  # fmt: skip
    def of_big(engine: Engine) -> None:
        engine.configure(KIND, policy)
        must_pass(engine, [Submit(kind=KIND, payload={"tenant": "big"})])

    with host.database(store) as url:
        fill(store, url, of_big, big, say)
        with open_engine(url) as engine:
            _claim(engine)  # The first claim reads names and plans statements.
            small = [engine.submit(KIND, {"tenant": "small"}).id for _ in range(SMALL)]
            return _until_claimed(engine, set(small), big, seconds)


def _until_claimed(engine: Engine, small: set[str], big: int, seconds: float) -> dict[str, float | bool]:
    began, first_s, claims, done = time.perf_counter(), None, 0, 0
    while small and (claims < 2 or time.perf_counter() - began < seconds):
        claimed = _claim(engine)
        claims, done = claims + 1, done + len(claimed)
        if first_s is None and small.intersection(claimed):
            first_s = time.perf_counter() - began
        small.difference_update(claimed)
    took = time.perf_counter() - began
    estimated = took if not small else took * big / done
    return {
        "first_ms": round((first_s or estimated) * 1000, 1),
        "last_ms": round(estimated * 1000, 1),
        "claims": claims if not small else -(-big // BATCH),
        "per_s": round(done / took, 1),
        "measured": not small,
    }


def _claim(engine: Engine) -> list[str]:
    """Claim and report one batch. Returns the ids of its tasks."""
    claimed = engine.run([Claim(worker=WORKER, limit=BATCH)])[0].unwrap()
    must_pass(engine, [Succeed(**ticket(task)) for task in claimed])
    return [task.id for task in claimed]
