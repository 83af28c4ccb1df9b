"""Run many claimers on a database at once and judge the outcome: the load tests and the soak share this."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tests.support import fleet
from tests.support.audit import Audit, audit, audit_claims, audit_successes, deadlocks
from tests.support.claimers import janitors, prepare, run_claimers
from tests.support.engines import engine_on

JANITORS = 2


@dataclass
class LoadOutcome:
    """What came of it."""

    found: Audit
    claims: int
    successes: int
    took_s: float
    faults: list[str]

    def __str__(self) -> str:
        rate = self.claims / self.took_s
        return f"{self.found}; {self.claims} claims, {self.successes} successes in {self.took_s:.1f} s ({rate:.0f}/s)"


def run_claim_load(
    url: str, *, tasks: int, processes: int, threads: int, seed: int = 1, limit_s: float = 200.0, calm: bool = False
) -> LoadOutcome:
    """Let claimers and janitors loose on a fresh database until every task has ended."""
    with engine_on(url) as engine:
        prepare(engine, tasks, calm)
        began = time.time()
        until = began + limit_s
        plan = {"url": url, "tasks": tasks, "threads": threads, "seed": seed, "until": until, "calm": calm}
        plans: list[tuple[Any, ...]] = [({**plan, "number": n},) for n in range(processes)]
        sweeper = fleet.start(janitors, url, until, JANITORS)
        answers = fleet.run_all(run_claimers, plans, limit_s + 30)
        fleet.end_all([sweeper], 60)
        took_s = time.time() - began
        claims = [c for answer in answers for c in answer["claims"]]
        successes = [s for answer in answers for s in answer["successes"]]
        found = audit(engine.store)
        faults = [*found.faults, *audit_claims(claims), *audit_successes(engine.store, successes)]
        faults += [e for answer in answers for e in answer["errors"]]
        if found.still_open:
            faults.append(f"{found.still_open} tasks are still open after {took_s:.0f} s")
        if found.types["task.claimed"] < len(claims):
            faults.append(f"{len(claims)} claims were answered, {found.types['task.claimed']} are in the log")
    broken = deadlocks(url)
    if broken:
        faults.append(f"PostgreSQL had to break {broken} deadlocks")
    return LoadOutcome(found, len(claims), len(successes), took_s, faults)
