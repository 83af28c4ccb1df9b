"""Run many claimers on tasks under limits, kill some of them, and count from the log how many tasks ran at once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson

from onetray.domain.commands import Submit
from onetray.domain.lifecycle import HELD
from onetray.domain.limits import Concurrency
from onetray.engine import Engine
from tests.support import fleet
from tests.support.audit import audit, audit_claims, deadlocks
from tests.support.claim_load import JANITORS
from tests.support.claimers import POLICY, QUEUE, janitors, run_claimers
from tests.support.engines import engine_on

LIMITS = (1, 3, 10)


@dataclass
class LimitOutcome:
    """What came of it."""

    claims: int
    took_s: float
    most: dict[int, int]
    """By limit: how many tasks of one key ran at once, at most."""
    faults: list[str]

    def __str__(self) -> str:
        at_once = ", ".join(f"{most} of {limit}" for limit, most in sorted(self.most.items()))
        return f"{self.claims} claims in {self.took_s:.1f} s; most at once: {at_once}"


def kind_of(limit: int) -> str:
    return f"load{limit}"


def prepare_limits(engine: Engine, tasks: int, keys: int) -> None:
    """Submit tasks of three kinds, of so many keys, and limit how many of each kind and key run at once."""
    for limit in LIMITS:
        engine.configure(kind_of(limit), POLICY.with_(concurrency=(Concurrency(limit, key="key"),)))
    for start in range(0, tasks, 500):
        numbers = range(start, min(start + 500, tasks))
        submits = [Submit(kind=kind_of(LIMITS[n % 3]), queue=QUEUE, payload={"key": n // 3 % keys}) for n in numbers]
        for verdict in engine.run(submits):
            verdict.unwrap()


def run_limit_load(
    url: str,
    *,
    tasks: int,
    processes: int,
    threads: int,
    keys: int = 50,
    kills: int = 0,
    seed: int = 1,
    limit_s: float = 200.0,
) -> LimitOutcome:
    """Let claimers and janitors loose until every task has ended. `kills` more processes die by SIGKILL meanwhile."""
    with engine_on(url) as engine:
        prepare_limits(engine, tasks, keys)
        began = time.time()
        until = began + limit_s
        plan = {"url": url, "tasks": tasks, "threads": threads, "seed": seed, "until": until}
        plans: list[tuple[Any, ...]] = [({**plan, "number": n},) for n in range(processes)]
        sweeper = fleet.start(janitors, url, until, JANITORS)
        doomed = [fleet.start(claim_until_killed, {**plan, "number": 1_000 + n}) for n in range(kills)]
        answers = fleet.run_all(run_claimers, plans, limit_s + 30)
        fleet.end_all([sweeper], 60)
        fleet.end_all(doomed, 60, exitcode=-signal.SIGKILL)
        took_s = time.time() - began
        claims = [c for answer in answers for c in answer["claims"]]
        found, most = audit(engine.store), most_at_once(engine)
        faults = [*found.faults, *audit_claims(claims), *(e for answer in answers for e in answer["errors"])]
        faults += [f"{most[limit]} tasks of a key ran at once, not {limit}" for limit in most if most[limit] > limit]
        if found.still_open:
            faults.append(f"{found.still_open} tasks are still open after {took_s:.0f} s")
        faults += [f"{limit.running} slots of {limit.kind} leaked" for limit in engine.limits() if limit.running]
    if broken := deadlocks(url):
        faults.append(f"PostgreSQL had to break {broken} deadlocks")
    return LimitOutcome(len(claims), took_s, most, faults)


def claim_until_killed(fields: dict[str, Any]) -> None:
    """One process: it dies at a random time, in the middle of whatever its threads do."""
    wait_s = random.Random(f"{fields['seed']}/{fields['number']}").uniform(0.5, 3.0)
    threading.Timer(wait_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        run_claimers(fields)


def most_at_once(engine: Engine) -> dict[int, int]:
    """By limit: how many tasks of one key were held at once, at most, as the events tell in their order."""
    limit_of = {kind_of(limit): limit for limit in LIMITS}
    rows = engine.store.read_sql("SELECT t.key, k.name, t.payload FROM onetray.task AS t JOIN onetray.kind AS k "
                                 "ON k.key = t.kind")  # fmt: skip
    key_of = {key: (limit_of[kind], orjson.loads(payload)["key"]) for key, kind, payload in rows}
    running: Counter[tuple[int, Any]] = Counter()
    most: dict[int, int] = dict.fromkeys(LIMITS, 0)
    events = "SELECT e.entity, e.was, e.state FROM onetray.event AS e WHERE e.version IS NOT NULL ORDER BY e.id"
    for task, was, state in engine.store.read_sql(events):
        place = key_of[task]
        running[place] += (state in HELD) - (was in HELD)
        most[place[0]] = max(most[place[0]], running[place])
    return most
