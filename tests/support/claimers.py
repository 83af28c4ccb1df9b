"""Claimers that behave as badly as real ones: they finish, fail, release, vanish, and cancel what others hold.

Several processes run them, each in some threads; each thread has an engine of its own.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onetray.config import EngineConfig
from onetray.domain.errors import Conflict, NotFound
from onetray.domain.policy import Policy
from onetray.domain.task import Assignment
from onetray.engine import Engine

QUEUE = "load"
# Short waits: retries and expiries have to happen within seconds.
POLICY = Policy(max_attempts=3, backoff_base_s=0.01, backoff_max_s=0.05, lease_s=1.5, cancel_grace_s=0.05)
LEASES_S = (0.05, 0.3, 1.5)
CALM = POLICY.with_(max_attempts=50, lease_s=10.0)
"""Nobody but those who vanish is to lose a lease, however busy the machine is."""
VANISHING_S = 0.05
IDLE_S = 0.25
"""How long a claimer that found nothing waits at most. Woken by each commit, tens of them would all claim again."""


@dataclass
class ClaimerPlan:
    """What one process of claimers does."""

    url: str
    tasks: int
    threads: int
    number: int
    seed: int
    until: float
    """When to give up, on the system's clock."""
    calm: bool = False
    """Only succeed, or vanish in the first attempt: then every task has to succeed in the end."""


def prepare(engine: Engine, tasks: int, calm: bool) -> None:
    """Fill the queue with tasks whose keys are 1 to `tasks`."""
    from onetray.domain.commands import Submit

    engine.configure("load", CALM if calm else POLICY)
    for start in range(0, tasks, 500):
        size = min(500, tasks - start)
        for verdict in engine.run([Submit(kind="load", queue=QUEUE, payload=start + i) for i in range(size)]):
            verdict.unwrap()


def run_claimers(fields: dict[str, Any]) -> dict[str, Any]:
    """One process: its threads claim until every task has ended. Returns what the engine answered them."""
    plan = ClaimerPlan(**fields)
    answers: dict[str, Any] = {"claims": [], "successes": [], "errors": []}
    threads = [threading.Thread(target=_guarded, args=(plan, n, answers)) for n in range(plan.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _guarded(plan: ClaimerPlan, number: int, answers: dict[str, Any]) -> None:
    while True:
        try:
            with Engine.open(plan.url, config=EngineConfig(committers=1)) as engine:
                # Known beforehand, so that a claim needs one connection and not a second one to ask for names.
                engine.store.names.refresh()
                Claimer(engine, plan, number, answers).run()
            return
        except Exception as e:
            # 64 engines share one SQLite file: on a busy disk one of them may wait for the lock longer than it may.
            # Nothing was written then, and it tries again, as a worker does.
            if "database is locked" not in str(e) or time.time() > plan.until:
                answers["errors"].append(f"{type(e).__name__}: {e}")
                return


class Claimer:
    def __init__(self, engine: Engine, plan: ClaimerPlan, number: int, answers: dict[str, Any]) -> None:
        self.engine, self.plan, self.answers = engine, plan, answers
        self.name = f"w{plan.number}.{number}"
        self.chance = random.Random(f"{plan.seed}/{self.name}")

    def run(self) -> None:
        while time.time() < self.plan.until:
            limit = self.chance.choice((1, 3, 10))
            claimed = self.engine.claim(QUEUE, worker=self.name, limit=limit, lease_s=self._lease_s())
            self.answers["claims"] += [(a.key, a.fence) for a in claimed]
            for assignment in claimed:
                if not self.plan.calm:
                    self._meddle(self.chance.randint(1, self.plan.tasks))
                self._refusable(self._finish_or_vanish if self.plan.calm else self._treat, assignment)
            if not claimed and self._all_done():
                return

    def _lease_s(self) -> float:
        if not self.plan.calm:
            return self.chance.choice(LEASES_S)
        return VANISHING_S if self.chance.random() < 0.1 else CALM.lease_s

    def _all_done(self) -> bool:
        if self.engine.store.read_sql("SELECT 1 FROM onetray.task WHERE finished_at IS NULL LIMIT 1"):
            # Somebody else still holds work that may come back.
            time.sleep(self.chance.uniform(0, IDLE_S))
            return False
        return True

    def _finish_or_vanish(self, a: Assignment) -> None:
        if a.fence > 1 or a.lease_s > VANISHING_S:
            self._succeed(a)

    def _succeed(self, a: Assignment) -> None:
        self.engine.succeed(a, {"by": self.name})
        self.answers["successes"].append((a.key, a.fence, a.worker))

    def _treat(self, a: Assignment) -> None:
        draw = self.chance.random()
        if draw < 0.55:
            self._succeed(a)
        elif draw < 0.70:
            self.engine.start(a)
            self._succeed(a)
        elif draw < 0.80:
            self.engine.fail(a, "no luck", retryable=self.chance.random() < 0.8)
        elif draw < 0.88:
            self.engine.release(a)
        elif draw < 0.92:
            self.engine.beat(a)
        # Else it vanishes, and the lease has to expire.

    def _meddle(self, key: int) -> None:
        draw = self.chance.random()
        if draw < 0.04:
            self._refusable(self.engine.cancel, key, hard=True)
        elif draw < 0.10:
            self._refusable(self.engine.cancel, key)
        elif draw < 0.20:
            self._refusable(self.engine.set_priority, key, self.chance.randint(-2, 2))

    @staticmethod
    def _refusable(call: Any, *args: Any, **fields: Any) -> None:
        # A refusal is an answer. What counts is what was accepted.
        with suppress(Conflict, NotFound):
            call(*args, **fields)


def janitors(url: str, until: float, count: int) -> int:
    """One process with several janitors at once, until every task is in a tray."""
    with Engine.open(url) as engine:
        running = [engine.janitor(every_s=0.05) for _ in range(count)]
        for janitor in running:
            janitor.start()
        open_task = "SELECT 1 FROM onetray.task WHERE finished_at IS NULL LIMIT 1"
        while time.time() < until and engine.store.read_sql(open_task):
            engine.wake.wait(engine.wake.generation, 0.05)
        for janitor in running:
            janitor.stop()
    return 0
