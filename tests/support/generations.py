"""Workers that die young, generation after generation, and the account of what they were told."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onetray.domain.policy import Policy
from onetray.engine import Engine
from onetray.failpoints import POINTS
from tests.support import fleet
from tests.support.audit import audit
from tests.support.dying_processes import worker_that_dies
from tests.support.engines import engine_on, must_verify
from tests.support.fleet import Ledger

KILLED = -signal.SIGKILL
EVENT_OF = {
    "submit": "task.submitted",
    "claim": "task.claimed",
    "start": "task.started",
    "succeed": "task.succeeded",
    "fail": "task.failed",
}
Death = tuple[str, int]
"""The point at which a worker is killed, and how often it gets past it."""


def prepare(engine: Engine) -> None:
    engine.configure("mail", Policy(backoff_base_s=0, lease_s=0.2))
    engine.resume_queue("default")


def die(url: str, ledger: Path, deaths: list[Death]) -> None:
    """One generation: all work at the same time, each until its own death."""
    workers = [fleet.start(worker_that_dies, url, str(ledger), point, hits) for point, hits in deaths]
    fleet.end_all(workers, 120, exitcode=KILLED)


def lost(engine: Engine, ledger: Path) -> list[Any]:
    """What was acknowledged and is not in the log exactly once."""
    logged = {verb: _logged(engine, type_) for verb, type_ in EVENT_OF.items()}
    return [fact for fact in Ledger.read(ledger) if logged[fact[0]][fact[1], fact[2]] != 1]


def _logged(engine: Engine, type_: str) -> Counter[tuple[str, int]]:
    sql = (
        "SELECT CAST(t.id AS text), e.fence FROM onetray.event AS e JOIN onetray.task AS t ON t.key = e.entity "
        "WHERE e.type = :type"
    )
    return Counter((id_, fence) for id_, fence in engine.store.read_sql(sql, type=type_))


def drained(engine: Engine) -> bool:
    """Let the janitor take back what the dead held, and an heir do what is left; whether nothing is."""
    engine.sweep()
    for assignment in engine.claim(worker="heir", limit=100, lease_s=30):
        engine.succeed(assignment)
    return not engine.store.read_sql("SELECT 1 FROM onetray.task WHERE finished_at IS NULL LIMIT 1")


def run_generations(url: str, until: float, workers: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """Kill generation after generation; answer what is wrong in the end."""
    chance, faults, generation = random.Random(seed), [], 0
    with engine_on(url) as engine, tempfile.TemporaryDirectory(prefix="onetray-ledger-") as folder:
        prepare(engine)
        ledger = Path(folder) / "ledger"
        while time.monotonic() < until and not faults:
            generation += 1
            die(
                url,
                ledger,
                [(chance.choice((*POINTS, "acknowledged")), chance.randint(1, 200)) for _ in range(workers)],
            )
            fleet.wait_until(lambda: drained(engine), 60)
            found = audit(engine.store)
            faults = found.faults + [f"acknowledged but not in the log once: {fact}" for fact in lost(engine, ledger)]
            must_verify(engine)
        say(f"{generation} generations of {workers} killed; {len(Ledger.read(ledger))} acknowledged; {found}")
    return faults
