"""Janitors in processes of their own fire one schedule, and are killed at the named points of a fire, again and again.

Their clock runs fast, so that thousands of fire times come within a minute. Afterwards each fire time has one job.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.engine import Engine
from onetray.store import open_store
from onetray.verify import verify
from tests.support.dying_processes import die_at

BEGAN = 1_780_272_000 * SECOND
POINTS = ("begun", "locked", *failpoints.SCHEDULE_POINTS, "committing", "committed")
NAME = "every second"


class FastClock:
    """The same time in every process."""

    def __init__(self, began: float, speed: float) -> None:
        self._began, self._speed = began, speed

    def now(self) -> int:
        return BEGAN + int((time.time() - self._began) * self._speed * SECOND)


@dataclass
class Outcome:
    """What a campaign has seen."""

    fires: int
    kills: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"fire times: {self.fires:,}, janitors killed: {self.kills}"


def janitor(url: str, clock: FastClock, point: str, hits: int, until: int) -> None:
    """Fire until the last fire time has passed, or until the point is hit so often."""
    engine = Engine(open_store(url, clock))
    die_at(point, hits)
    while clock.now() < until:
        engine.fire_schedules()
        time.sleep(0.005)
    os._exit(0)


def run_kills(url: str, *, fires: int, processes: int, speed: float, seed: int, say: Callable[[str], None]) -> Outcome:
    """Fire a schedule with so many processes, each of which is killed and replaced."""
    rng, seen = random.Random(seed), Outcome(fires)
    store = open_store(url)
    store.migrate()
    store.close()
    clock = FastClock(time.time(), speed)
    spawn = multiprocessing.get_context("spawn")
    with Engine(open_store(url, clock)) as engine:
        first = (clock.now() // SECOND + 600) * SECOND
        until = first + (fires - 1) * SECOND
        engine.put_schedule(
            NAME, kind="mail", every_s=1, catch_up="all", catch_up_s=10 * fires, starts_at=first, ends_at=until
        )
        running: list[multiprocessing.process.BaseProcess] = []
        while clock.now() < until:
            for process in [p for p in running if p.exitcode is not None]:
                running.remove(process)
                seen.kills += process.exitcode == -9
            while len(running) < processes:
                doom = rng.choice(POINTS), rng.randint(1, 8)
                new = spawn.Process(target=janitor, args=(url, clock, *doom, until), daemon=True)
                new.start()
                running.append(new)
            time.sleep(0.1)
        for process in running:
            process.join(60)
            seen.kills += process.exitcode == -9
        while engine.fire_schedules():
            pass
        seen.faults = faults_of(engine, first, fires)
    say(str(seen))
    return seen


def faults_of(engine: Engine, first: int, fires: int) -> list[str]:
    """Fire times without a job, with two, or out of the calendar; and broken rules."""
    faults = [f"rule {v.rule} {v.name}: {v.total}" for v in verify(engine.store).violations]
    found = [fire for fire in engine.schedule_fires(NAME, limit=10_000) if fire.outcome == "submitted"]
    missing = {first + n * SECOND for n in range(fires)}.symmetric_difference(fire.fire_at for fire in found)
    if missing:
        faults.append(f"fire times without a job, or out of the calendar: {sorted(missing)[:5]} of {len(missing)}")
    ((jobs,),) = engine.store.read_sql("SELECT count(*) FROM onetray.task")
    if not jobs == len({fire.job for fire in found}) == fires:
        faults.append(f"{jobs} jobs and {len(found)} fires for {fires} fire times")
    return faults
