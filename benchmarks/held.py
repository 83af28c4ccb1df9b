"""Somebody keeps a transaction open, and nothing can be cleaned up meanwhile: do claims become slower?

Owns the load and the one who holds a snapshot. On PostgreSQL dead rows stay, on SQLite the log grows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import apsw
import psycopg

from benchmarks.checks import must_be_sound
from benchmarks.core import must_pass, open_engine
from benchmarks.host import Host
from benchmarks.limit import WORKER
from onetray.domain.commands import Claim, Submit, Succeed, ticket
from onetray.engine import Engine

BATCH = 100
WINDOW_S = 20.0
LOOK = "SELECT count(*) FROM onetray.task WHERE key < 0"
"""A transaction has its snapshot from its first look on."""


@dataclass
class Rate:
    """What constant load did."""

    tasks: int = 0
    claim_s: float = 0.0
    wall_s: float = 0.0

    @property
    def claims(self) -> float:
        """Tasks for each second that was spent claiming."""
        return self.tasks / self.claim_s

    @property
    def jobs(self) -> float:
        return self.tasks / self.wall_s


def held(host: Host, store: str, seconds: float, say: Callable[[str], None]) -> dict[str, float]:
    """Claims in the last part of so many seconds with a transaction open, as a share of those before it was.

    Another database takes turns with it in both parts: what the machine does meanwhile is told from what the
    transaction does.
    """
    window_s = min(WINDOW_S, seconds / 2)
    with (
        host.database(store) as url, host.database(store) as other,
        open_engine(url) as engine, open_engine(other) as free,
    ):  # fmt: skip
        engine.janitor().start()  # As beside every worker: it sweeps what is over.
        _load([engine, free], window_s / 2)  # A start is slower than what follows.
        before, free_before = _load([engine, free], window_s)
        with _snapshot(store, url):
            say(f"{store}: a transaction is held open for {seconds:g} s")
            _load([engine], seconds - window_s)
            after, free_after = _load([engine, free], window_s)
            log = _log_mib(store, url)
        must_be_sound(engine)
    return {
        "share": round(after.claims / before.claims / (free_after.claims / free_before.claims), 3),
        "claims": round(after.claims, 1),
        "claims_before": round(before.claims, 1),
        "free_claims": round(free_after.claims, 1),
        "free_claims_before": round(free_before.claims, 1),
        "jobs_share": round(after.jobs / before.jobs / (free_after.jobs / free_before.jobs), 3),
        **log,
    }


def _load(engines: list[Engine], seconds: float) -> list[Rate]:
    """Submit, claim and report batches, one after another and in turns: at least one each."""
    rates, began = [Rate() for _ in engines], time.perf_counter()
    while not rates[0].tasks or time.perf_counter() - began < seconds:
        for engine, rate in zip(engines, rates, strict=True):
            _batch(engine, rate)
    return rates


def _batch(engine: Engine, rate: Rate) -> None:
    began = time.perf_counter()
    must_pass(engine, [Submit(kind="noop", payload={"number": n}) for n in range(BATCH)])
    asked = time.perf_counter()
    claimed = engine.run([Claim(worker=WORKER, limit=BATCH)])[0].unwrap()
    rate.claim_s += time.perf_counter() - asked
    assert len(claimed) == BATCH, f"{len(claimed)} of {BATCH} tasks were claimed"
    must_pass(engine, [Succeed(**ticket(a)) for a in claimed])
    rate.tasks += BATCH
    rate.wall_s += time.perf_counter() - began


@contextmanager
def _snapshot(store: str, url: str) -> Iterator[None]:
    """A reader that does not end its transaction."""
    if store == "postgres":
        with psycopg.connect(url) as server:
            server.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            server.execute(LOOK)
            yield
        return
    with closing(apsw.Connection(_path(url), flags=apsw.SQLITE_OPEN_READONLY)) as file:
        file.execute("BEGIN")
        file.execute(LOOK.replace("onetray.", "")).fetchall()
        yield
        file.execute("ROLLBACK")


def _log_mib(store: str, url: str) -> dict[str, float]:
    """How large SQLite's log has become."""
    return {"wal_mib": round(os.path.getsize(f"{_path(url)}-wal") / 2**20, 1)} if store == "sqlite" else {}


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")
