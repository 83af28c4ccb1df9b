"""Real servers and workers fire one schedule, and are killed at the named points of a fire, again and again.

Its fire times lie in the past, as after a downtime, until they are caught up; then they come one by one. Used by the
crash tests and at full size by `./go soak schedules`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onetray import failpoints
from onetray.domain.clock import SECOND
from onetray.engine import Engine
from onetray.store import open_store
from onetray.verify import verify
from tests.support.fleet import Ledger
from tests.support.prepared import PreparedProcess
from tests.support.workers import APP

POINTS = ("begun", *failpoints.SCHEDULE_POINTS, "committing", "committed")
NAME, KIND = "every second", "nap"
POLL_S = 0.05
BEHIND = "UPDATE onetray.schedule SET next_fire_at = :first, look_at = :first RETURNING 1"
FIRED = """
SELECT count(*), count(DISTINCT x.fire_at), count(DISTINCT x.job_id), max(x.fire_at), max(c.fires), max(c.kept_from),
    (SELECT count(*) FROM onetray.task), (SELECT count(DISTINCT t.correlation_id) FROM onetray.task AS t)
FROM onetray.schedule_fire AS x JOIN onetray.schedule AS c ON c.key = x.schedule
"""


@dataclass
class Outcome:
    """What a campaign has seen."""

    fires: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    """By the point."""
    fired_by: Counter[str] = field(default_factory=Counter)
    """How many transactions of fires each of the processes has committed; its successors have its name."""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{number} at {point}" for point, number in sorted(self.kills.items()))
        fired = ", ".join(f"{name} {number}" for name, number in sorted(self.fired_by.items()))
        return f"fire times: {self.fires:,}; killed: {kills}; transactions of fires by {fired}"


class Victim:
    """One server or worker, which is replaced each time that it has died."""

    def __init__(self, url: str, folder: Path, name: str, rng: random.Random, first: int, step: int) -> None:
        self._url, self._folder, self.name, self._rng, self._step = url, folder, name, rng, step
        # Together, their first lives end at all points.
        self._points = [*POINTS[first % len(POINTS) :], *POINTS[: first % len(POINTS)]]
        self.start()

    def start(self) -> None:
        self.point = self._points.pop(0)
        self._points.append(self.point)
        words = ["serve", "--port", "0"] if self.name.startswith("server") else ["worker", "--app", APP]
        log = self._folder / f"{self.name}.log"
        self.process = PreparedProcess(
            "tests.support.dying_program", str(self._folder / "ledger"), self.name, self.point,
            str(self._rng.randint(1, 5)), str(self._step), *words, "--database", self._url, stdout=log, stderr=log,
        )  # fmt: skip


def run_kills(
    url: str, *, fires: int, servers: int, workers: int, step: int, seed: int, limit_s: float,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """Fire at least so many times, until each process has fired and one has died at each point."""
    rng, seen = random.Random(seed), Outcome()
    names = [*(f"server-{n}" for n in range(servers)), *(f"worker-{n}" for n in range(workers))]
    store = open_store(url)
    store.migrate()
    with tempfile.TemporaryDirectory(prefix="onetray-fires-") as found, Engine(store) as engine:
        folder = Path(found)
        first = (engine.store.now() // SECOND - fires) * SECOND
        engine.put_schedule(NAME, kind=KIND, payload={"seconds": 0.0}, every_s=1, catch_up="all", catch_up_s=10 * fires)
        engine.store.write(lambda tx: tx.fetch(BEHIND, {"first": first}))
        victims = [Victim(url, folder, name, rng, n, step) for n, name in enumerate(names)]
        try:
            _kill(engine, victims, seen, fires, folder / "ledger", limit_s)
        finally:
            for victim in victims:
                victim.process.kill()
                victim.process.wait(60)
        seen.faults += _faults(engine, seen, first)
    say(str(seen))
    return seen


def _kill(engine: Engine, victims: list[Victim], seen: Outcome, fires: int, ledger: Path, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while True:
        for victim in victims:
            if (code := victim.process.poll()) is not None:
                if code != -9:
                    seen.faults.append(f"{victim.name} has ended with {code}, not at {victim.point}")
                    return
                seen.kills[victim.point] += 1
                victim.start()
        seen.fired_by = Counter(name for _, name in Ledger.read(ledger))
        idle = [victim.name for victim in victims if not seen.fired_by[victim.name]]
        spared = set(POINTS) - set(seen.kills)
        if engine.schedule(NAME).fires >= fires and not idle and not spared:
            return
        if time.monotonic() > until:
            seen.faults.append(f"after {limit_s:g} s: not fired by {idle}; nobody has died at {sorted(spared)}")
            return
        time.sleep(POLL_S)


def _faults(engine: Engine, seen: Outcome, first: int) -> list[str]:
    """Fire times without a job or with two, and broken rules."""
    faults = [f"rule {v.rule} {v.name}: {v.total}" for v in verify(engine.store).violations]
    ((rows, times, jobs_of_fires, last, fires, kept_from, jobs, scheduled),) = engine.store.read_sql(FIRED)
    seen.fires = (last - first) // SECOND + 1
    if not fires == jobs == scheduled == seen.fires:
        faults.append(f"{fires} fires and {jobs} jobs, {scheduled} with times of their own, for {seen.fires} times")
    kept = seen.fires if not kept_from else (last - kept_from) // SECOND + 1
    if not rows == times == jobs_of_fires == kept:
        faults.append(f"{rows} rows for {kept} fire times that are kept, {jobs_of_fires} jobs")
    return faults
