"""Take PostgreSQL away from workers and submitters for a while, under load; then look at what is left.

Used by the crash tests and at full size by `./go soak workers`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onetray.domain.errors import OnetrayError
from onetray.engine import Engine
from onetray.verify import verify
from tests.support import workload
from tests.support.audit import audit
from tests.support.cluster import Cluster
from tests.support.fleet import Ledger, wait_until
from tests.support.workers import WorkerProcess, cpu_s, workers

HANDLER_S = 0.3


@dataclass
class Outage:
    """What was seen while the database was away, and what was wrong afterwards."""

    jobs: int = 0
    unanswered: int = 0
    cpu_s: float = 0.0
    lines: int = 0
    log: str = ""
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, {self.unanswered} submits without an answer; while the database was away the worker"
            f" used {self.cpu_s:.2f} s of CPU and wrote {self.lines} lines"
        )


class Submitter:
    """Submits without a pause, and remembers what it was told."""

    def __init__(self, ledger: str) -> None:
        self.ids: list[str] = []
        self.refused = 0
        self._ledger, self._stop = ledger, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.ids.append(workload.linger.submit(HANDLER_S, self._ledger).id)
            except OnetrayError:
                self.refused += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


def take_away(cluster: Cluster, url: str, folder: Path, away_s: float, how: Callable[[Cluster], None]) -> Outage:
    """Run one worker and one submitter, take the database away, give it back, and wait until all is done."""
    outage, ledger = Outage(), str(folder / "ledger")
    with Engine.open(url) as engine:
        workload.app.use(engine)
        try:
            with workers(url, folder, 1, "--concurrency", "20") as (worker,):
                submitter = Submitter(ledger)
                wait_until(lambda: len(_succeeded(engine)) >= 10)
                accepted = _succeeded(engine)
                how(cluster)
                _watch(worker, away_s, outage)
                cluster.start_again()
                known = len(submitter.ids)
                wait_until(lambda: len(submitter.ids) > known + 10, 60)
                submitter.end()
                wait_until(lambda: _open(engine) == 0, 90)
                outage.log = worker.log
            outage.jobs, outage.unanswered = len(submitter.ids), submitter.refused
            outage.faults += _faults(engine, accepted, submitter.ids, ledger)
        finally:
            workload.app.use(None)
    return outage


def _watch(worker: WorkerProcess, away_s: float, outage: Outage) -> None:
    cpu, lines = cpu_s(worker.pid), worker.log.count("\n")
    time.sleep(away_s)
    outage.cpu_s, outage.lines = cpu_s(worker.pid) - cpu, worker.log.count("\n") - lines


def _succeeded(engine: Engine) -> set[str]:
    return {task.id for task in engine.tasks(limit=10_000) if task.state == "succeeded"}


def _open(engine: Engine) -> int:
    return int(engine.store.read_sql("SELECT count(*) FROM onetray.task WHERE finished_at IS NULL")[0][0])


def _faults(engine: Engine, accepted: set[str], acknowledged: list[str], ledger: str) -> list[str]:
    faults = list(audit(engine.store).faults) + [str(v) for v in verify(engine.store).violations]
    done = _succeeded(engine)
    faults += [f"{id_} was succeeded before and is not any more" for id_ in accepted - done]
    faults += [f"the submit of {id_} was answered, and it has not succeeded" for id_ in set(acknowledged) - done]
    # The leases outlast the outage: what ended during it is reported afterwards, not done again.
    again = [id_ for id_, times in Counter(row[0] for row in Ledger.read(ledger)).items() if times > 1]
    return faults + [f"the handler of {id_} ran again" for id_ in again]
