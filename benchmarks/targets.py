"""What onetray is to reach, and whether it does. A target is a ratio of one run wherever it can be.

Owns the targets. What they are judged by is in measured.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.catalogue import ON_POSTGRES, OURS_BESIDE_PEERS, PYTHON

if TYPE_CHECKING:
    from benchmarks.measured import Measured

SQLITE, POSTGRES, SAME_PROCESS = "onetray-sqlite", "onetray-postgres", "sqlite_same_process"
AT_LEAST, AT_MOST = "at least", "at most"


class Judged(NamedTuple):
    """A measure, what it is to be, and what it is. Nothing is reached where it could not be measured."""

    measure: str
    bound: str
    target: float
    reached: float | None
    note: str = ""

    @property
    def met(self) -> bool:
        if self.reached is None:
            return False
        return self.reached >= self.target if self.bound == AT_LEAST else self.reached <= self.target


def _drain(run: Measured) -> Iterator[Judged]:
    def to(ours: str, peer: str, target: float) -> Judged:
        return Judged(f"drain, {ours}, to {peer}", AT_LEAST, target, _ratio(run.peers, "drain", ours, peer))

    def to_limit(ours: str, store: str, target: float) -> Judged:
        mine, best = run.peers.get(ours), run.limit[store]
        reached = mine["drain"] / best["best_drain"] if mine else None
        return Judged(f"drain, {ours}, to the limit", AT_LEAST, target, reached, best["best"])

    yield to(POSTGRES, "graphile-worker", 1.0)
    yield to(POSTGRES, "pgqueuer", 1.6)
    yield to(POSTGRES, "pg-boss", 1.2)
    yield to_limit(POSTGRES, "postgres", 0.7)
    yield to(SQLITE, "huey-sqlite", 12.0)
    yield to_limit(SQLITE, "sqlite", 0.5)


def _bytes(run: Measured) -> Iterator[Judged]:
    for ours, target in ((POSTGRES, 1_000.0), (SQLITE, 400.0)):
        yield Judged(f"bytes a job, {ours}", AT_MOST, target, _figure(run.peers, "bytes_per_job", ours))


def _bulk(run: Measured) -> Iterator[Judged]:
    yield _to_every(f"bulk submit, {POSTGRES}", run.peers, "bulk", POSTGRES, ON_POSTGRES)


def _submit(run: Measured) -> Iterator[Judged]:
    for store, found in run.submit.items():
        yield Judged(f"single submit, {store}, to one by hand", AT_LEAST, 0.7, found["one"]["to_by_hand"])
        for way in ("threads", "aio"):
            yield Judged(f"submits of 64 {way}, {store}, to one caller", AT_LEAST, 5.0, found[way]["to_one"])


def _pickup(run: Measured) -> Iterator[Judged]:
    yield Judged(
        f"pickup p50, {POSTGRES}, to graphile-worker", AT_MOST, 1.0,
        _ratio(run.peers, "pickup_p50_ms", POSTGRES, "graphile-worker"),
    )  # fmt: skip
    yield Judged(f"pickup p50, {SQLITE}, ms", AT_MOST, 2.0, _figure(run.peers, "pickup_p50_ms", SQLITE))
    mine = run.peers.get(POSTGRES)
    tail = mine["pickup_p99_ms"] / mine["pickup_p50_ms"] if mine else None
    yield Judged(f"pickup p99, {POSTGRES}, to p50", AT_MOST, 3.0, tail)
    here = run.pickup[SAME_PROCESS]
    yield Judged("pickup p50, sqlite in one process, ms", AT_MOST, 2.0, here["median_ms"])
    yield Judged("pickup p99, sqlite in one process, to p50", AT_MOST, 3.0, here["p99_ms"] / here["median_ms"])


def _handlers(run: Measured) -> Iterator[Judged]:
    peers = [name for name in PYTHON if name not in OURS_BESIDE_PEERS]
    for ours in OURS_BESIDE_PEERS:
        yield _to_every(f"handlers of 1 ms, {ours}", run.handlers, "drain", ours, peers)


def _history(run: Measured) -> Iterator[Judged]:
    for store, found in run.history.items():
        for what, figure in (("history of a job", "history_ratio"), ("feed page of 1,000", "page_ratio")):
            yield Judged(f"{what} among 10,000,000 events, {store}, to one by hand", AT_MOST, 1.5, found[figure])


def _http(run: Measured) -> Iterator[Judged]:
    for store, found in run.http.items():
        for phase, target in (("submit", 0.3), ("claim_report", 0.22)):
            ours = found["1"][phase]["onetray"]
            name = f"HTTP {phase.replace('_', ' + ')}, {store}"
            yield Judged(f"{name}, to a bare route", AT_LEAST, target, ours["to_bare"])
            yield Judged(f"{name}, p99 to p50", AT_MOST, 2.0, ours["p99_ms"] / ours["p50_ms"])


def _workers(run: Measured) -> Iterator[Judged]:
    for store, found in run.workers.items():
        by_count = found["1"]
        for count, target in ((4, 0.9), (8, 0.75)):
            reached = by_count[str(count)]["drain"] / by_count["1"]["drain"]
            yield Judged(f"{count} workers together, {store}, to one", AT_LEAST, target, reached)


def _by_store(
    measure: str, found: Callable[[Measured], dict[str, Any]], figure: str, bound: str, target: float
) -> Callable[[Measured], Iterator[Judged]]:
    def judge(run: Measured) -> Iterator[Judged]:
        for store, figures in found(run).items():
            yield Judged(f"{measure}, {store}", bound, target, figures[figure])

    return judge


GROUPS: dict[str, Callable[[Measured], Iterator[Judged]]] = {
    "drain": _drain,
    "bytes": _bytes,
    "bulk": _bulk,
    "submit": _submit,
    "pickup": _pickup,
    "handlers": _handlers,
    "history": _history,
    "http": _http,
    "workers": _workers,
    "idle": _by_store("claims beside 1,000,000 delayed", lambda run: run.idle, "share", AT_LEAST, 0.8),
    "queued": _by_store("claims beside 1,000,000 queued", lambda run: run.queued, "share", AT_LEAST, 0.8),
    "finished": _by_store("claims beside 10,000,000 finished", lambda run: run.finished, "share", AT_LEAST, 0.8),
    "held": _by_store("claims with a transaction held open", lambda run: run.held, "share", AT_LEAST, 0.8),
    "memory": _by_store("MiB of a worker with 100,000 queued", lambda run: run.memory, "peak_mib", AT_MOST, 96.0),
    "flow": _by_store("flow of 10 x 1,000, to single tasks", lambda run: run.flow, "ratio", AT_LEAST, 0.5),
}
"""What can be chosen."""


def targets(run: Measured, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each target of these groups: what it is, what was reached, and whether that is enough."""
    return {
        judged.measure: {
            "target": f"{judged.bound} {judged.target:g}",
            "reached": None if judged.reached is None else round(judged.reached, 3),
            "met": judged.met,
            "note": judged.note,
        }
        for name in names
        for judged in GROUPS[name](run)
    }


def _figure(found: dict[str, Any], figure: str, ours: str) -> float | None:
    mine = found.get(ours)
    return mine[figure] if mine else None


def _ratio(found: dict[str, Any], figure: str, ours: str, peer: str) -> float | None:
    mine, theirs = found.get(ours), found.get(peer)
    return mine[figure] / theirs[figure] if mine and theirs else None


def _to_every(measure: str, found: dict[str, Any], figure: str, ours: str, peers: Sequence[str]) -> Judged:
    """Beside the fastest of these peers. One that is missing may be the fastest: then nothing is reached."""
    ratios = {peer: _ratio(found, figure, ours, peer) for peer in peers}
    known = {peer: ratio for peer, ratio in ratios.items() if ratio is not None}
    missing = [peer for peer in peers if peer not in known]
    if missing or not known:
        return Judged(f"{measure}, to every peer", AT_LEAST, 1.0, None, f"without {', '.join(missing) or 'peers'}")
    fastest = min(known, key=known.__getitem__)
    return Judged(f"{measure}, to every peer", AT_LEAST, 1.0, known[fastest], fastest)
