"""Kill real workers while they work, one after another, until every job is done; then look at what is left.

Used by the crash tests and at full size by `./go soak workers`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onetray.engine import Engine
from onetray.verify import verify
from tests.support import workload
from tests.support.audit import audit
from tests.support.fleet import Ledger, wait_until
from tests.support.workers import READY, WorkerProcess


@dataclass
class WorkerKills:
    """What was done, and what was wrong with the outcome."""

    jobs: int
    kills: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.jobs} jobs, {self.runs} handlers came to their end, {self.kills} workers killed"


def kill_workers(
    url: str,
    folder: Path,
    *,
    jobs: int,
    processes: int = 4,
    every_s: float = 1.0,
    most_kills: int | None = None,
    seed: int = 1,
    limit_s: float = 120.0,
    say: Callable[[str], None] = lambda _: None,
) -> WorkerKills:
    """Submit jobs, run workers, kill one of them again and again. It is replaced at once."""
    chance, done = random.Random(seed), WorkerKills(jobs)
    ledger = str(folder / "ledger")
    with Engine.open(url) as engine:
        app = workload.app
        app.use(engine)
        try:
            calls = [{"seconds": chance.uniform(0.05, 0.5), "ledger": ledger} for _ in range(jobs)]
            ids = [job.id for job in workload.nap.submit_many(calls)]
            fleet = [_start(url, folder, n) for n in range(processes)]
            try:
                _kill_until_done(engine, fleet, done, chance, every_s, most_kills, limit_s, say)
            finally:
                for worker in fleet:
                    worker.kill()
            done.runs = len(Ledger.read(ledger))
            done.faults += _faults(engine, ids, ledger)
        finally:
            app.use(None)
    return done


def _start(url: str, folder: Path, number: int) -> WorkerProcess:
    return WorkerProcess(url, folder / f"worker-{number}.log", "--concurrency", "4")


def _kill_until_done(
    engine: Engine, fleet: list[WorkerProcess], done: WorkerKills, chance: random.Random, every_s: float,
    most_kills: int | None, limit_s: float, say: Callable[[str], None],
) -> None:  # fmt: skip
    until = time.monotonic() + limit_s
    while left := _left(engine):
        if time.monotonic() > until:
            done.faults.append(f"{left} jobs are still open after {limit_s:g} s")
            return
        if most_kills is None or done.kills < most_kills:
            place = chance.randrange(len(fleet))
            victim = fleet[place]
            # One that has not begun to work is no loss: what is asked for is the death of one that holds tasks.
            wait_until(lambda: READY in victim.log)  # noqa: B023
            victim.kill()
            done.kills += 1
            fleet[place] = WorkerProcess(*_again(victim, done.kills))
            say(f"{left} jobs are open, {done.kills} workers killed")
        _wait(engine, every_s)


def _again(victim: WorkerProcess, number: int) -> tuple[str, Path, str, str]:
    return victim.url, victim.log_file.with_name(f"again-{number}.log"), "--concurrency", "4"


def _wait(engine: Engine, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > give_up_at or not _left(engine), seconds + 60)


def _left(engine: Engine) -> int:
    return int(engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NULL")[0][0])


def _faults(engine: Engine, ids: list[str], ledger: str) -> list[str]:
    """One tray for each job, one accepted outcome, and an effect behind every success."""
    faults = list(audit(engine.store).faults) + [str(v) for v in verify(engine.store).violations]
    effects = {row[0] for row in Ledger.read(ledger)}
    for id_ in ids:
        task = engine.task(id_)
        successes = sum(event.type == "task.succeeded" for event in engine.events(id_))
        if (task.state, successes) != ("succeeded", 1):
            faults.append(f"{id_} is {task.state} with {successes} accepted outcomes")
        if id_ not in effects:
            faults.append(f"{id_} has succeeded and its handler never came to its end")
    return faults
