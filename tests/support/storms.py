"""Run a storm of claimers on a database and judge it: the load tests and the soak share this."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.support import fleet
from tests.support.audit import Audit, audit, audit_claims, audit_successes, deadlocks
from tests.support.chaos import janitors, prepare, storm
from tests.support.engines import engine_on

JANITORS = 2


@dataclass
class Weather:
    """What came of a storm."""

    found: Audit
    claims: int
    successes: int
    took_s: float
    faults: list[str]

    def __str__(self) -> str:
        rate = self.claims / self.took_s
        return f"{self.found}; {self.claims} claims, {self.successes} successes in {self.took_s:.1f} s ({rate:.0f}/s)"


def run_storm(
    url: str, *, tasks: int, processes: int, threads: int, seed: int = 1, limit_s: float = 200.0, calm: bool = False
) -> Weather:
    """Let claimers and janitors loose on a fresh database until every task has ended."""
    with engine_on(url) as engine:
        prepare(engine, tasks, calm)
        began = time.time()
        until = began + limit_s
        plan = {"url": url, "tasks": tasks, "threads": threads, "seed": seed, "until": until, "calm": calm}
        plans: list[tuple[Any, ...]] = [({**plan, "number": n},) for n in range(processes)]
        sweeper = fleet.start(janitors, url, until, JANITORS)
        told = fleet.run_all(storm, plans, limit_s + 30)
        fleet.end_all([sweeper], 60)
        took_s = time.time() - began
        claims = [c for t in told for c in t["claims"]]
        successes = [s for t in told for s in t["successes"]]
        found = audit(engine.store)
        faults = [*found.faults, *audit_claims(claims), *audit_successes(engine.store, successes)]
        faults += [e for t in told for e in t["errors"]]
        if found.still_open:
            faults.append(f"{found.still_open} tasks are still open after {took_s:.0f} s")
        if found.types["task.claimed"] < len(claims):
            faults.append(f"{len(claims)} claims were answered, {found.types['task.claimed']} are in the log")
    broken = deadlocks(url)
    if broken:
        faults.append(f"PostgreSQL had to break {broken} deadlocks")
    return Weather(found, len(claims), len(successes), took_s, faults)
