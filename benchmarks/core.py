"""The core alone: jobs per second for submit, and for claim + start + succeed, beside the limit by hand.

Owns how engine and limit are driven and compared. Both get the same jobs in the same batches from one thread, in
turns, each on a fresh database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.checks import must_be_done
from benchmarks.host import Host, Took
from benchmarks.limit import WORKER, Limit, drain_by_hand, submit_by_hand
from benchmarks.limit_postgres import PostgresLimit
from benchmarks.limit_sqlite import SqliteLimit
from onetray.domain.clock import Clock
from onetray.domain.commands import Claim, Command, Submit, Succeed, ticket
from onetray.engine import Engine
from onetray.store import open_store

LIMITS: dict[str, Callable[..., Limit]] = {"sqlite": SqliteLimit, "postgres": PostgresLimit}
JOBS = {1: 1_000, 10: 5_000, 100: 20_000, 500: 40_000}
"""Jobs for each batch size: a second or two of work each."""
Measured = dict[str, list[Took]]


def jobs_for(batch: int) -> int:
    return JOBS.get(batch, 20_000)


def compare(host: Host, store: str, batch: int, jobs: int, rounds: int) -> dict[str, float]:
    """Measure engine and limit in turns and give the medians."""
    measured: Measured = defaultdict(list)
    for n in range(rounds):
        pair = (engine_round, limit_round)
        for one in pair if n % 2 == 0 else reversed(pair):
            with host.database(store) as url:
                one(host, store, url, batch, jobs, measured)
    rate = {name: jobs / median(t.wall_s for t in took) for name, took in measured.items()}
    cpu = {name: median(t.cpu_s for t in took) / jobs * 1e6 for name, took in measured.items()}
    return {
        **{name: round(per_s, 1) for name, per_s in rate.items()},
        "ratio": round(rate["drain"] / rate["limit_drain"], 3),
        "ratio_submit": round(rate["submit"] / rate["limit_submit"], 3),
        **{f"cpu_us_{name}": round(us, 1) for name, us in cpu.items()},
    }


def engine_round(host: Host, store: str, url: str, batch: int, jobs: int, measured: Measured) -> None:
    with open_engine(url) as engine:
        with host.stopwatch(store) as took:
            for start in range(0, jobs, batch):
                must_pass(engine, [Submit(kind="noop", payload={"i": i}) for i in _numbers(start, batch, jobs)])
        measured["submit"].append(took)
        with host.stopwatch(store) as took:
            drain(engine, batch)
        measured["drain"].append(took)
        must_be_done(engine, jobs)


def limit_round(host: Host, store: str, url: str, batch: int, jobs: int, measured: Measured) -> None:
    limit = LIMITS[store](url)
    try:
        with host.stopwatch(store) as took:
            submit_by_hand(limit, batch, jobs)
        measured["limit_submit"].append(took)
        with host.stopwatch(store) as took:
            drain_by_hand(limit, batch)
        measured["limit_drain"].append(took)
    finally:
        limit.close()
    with open_engine(url) as engine:
        must_be_done(engine, jobs)


def drain(engine: Engine, batch: int) -> None:
    """Claim and report until nothing is left: two transactions for each batch."""
    while claim_and_report(engine, batch):
        pass


def claim_and_report(engine: Engine, batch: int, queue: str = "default") -> int:
    """One batch; how many tasks it had."""
    claimed = engine.run([Claim(worker=WORKER, limit=batch, queue=queue)])[0].unwrap()
    must_pass(engine, [Succeed(**ticket(a)) for a in claimed])
    return len(claimed)


def must_pass(engine: Engine, commands: Sequence[Command]) -> None:
    for verdict in engine.run(commands):
        if verdict.error is not None:
            raise verdict.error


def open_engine(url: str, clock: Clock | None = None) -> Engine:
    store = open_store(url, clock)
    store.migrate()
    return Engine(store)


def _numbers(start: int, batch: int, jobs: int) -> range:
    return range(start, min(start + batch, jobs))
