"""What the targets are judged by: each measurement is made once, when it is first asked for.

Owns how large each of them is. How it is made is in the module of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.catalogue import ON_POSTGRES, OURS_BESIDE_PEERS, PYTHON
from benchmarks.flow import flow
from benchmarks.growth import beside
from benchmarks.handlers import handlers
from benchmarks.held import held
from benchmarks.history import history
from benchmarks.host import STORES, Host
from benchmarks.http import http
from benchmarks.limits import limits
from benchmarks.memory import memory
from benchmarks.peers import peers
from benchmarks.pickup import pickup
from benchmarks.submit import submit
from benchmarks.targets import SAME_PROCESS
from benchmarks.workers import workers

PEERS = (*OURS_BESIDE_PEERS, *ON_POSTGRES, "huey-sqlite")
BATCH = 500
WORKERS = (1, 4, 8)
GROWTH = ("idle", "queued", "finished", "held")
"""What `growth` has under one name."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much of everything. The defaults are what the targets are about."""

    rounds: int = 3
    jobs: int = 20_000
    limit_jobs: int = 40_000
    pickups: int = 200
    submits: int = 1_000
    callers: int = 64
    each: int = 50
    at_once: int = 500
    beside: int = 1_000_000
    finished: int = 10_000_000
    held_s: float = 300.0
    events: int = 10_000_000
    requests: int = 8_000
    clients: int = 32
    in_memory: int = 100_000
    stages: int = 10
    stage: int = 1_000


QUICK = Sizes(
    rounds=1, jobs=200, limit_jobs=200, pickups=3, submits=20, callers=8, each=3, at_once=50, beside=500, finished=500,
    held_s=0.5, events=2_000, requests=16, clients=4, in_memory=200, stages=2, stage=20,
)  # fmt: skip


class Measured:
    """The measurements of one run, on one host."""

    def __init__(self, host: Host, sizes: Sizes, say: Callable[[str], None]) -> None:
        self._host, self._sizes, self._say = host, sizes, say
        self.missing: dict[str, str] = {}

    @cached_property
    def peers(self) -> Figures:
        sizes = self._sizes
        found = peers(self._host, PEERS, sizes.jobs, sizes.pickups, sizes.rounds, self._say)
        self.missing |= found["missing"]
        return dict(found["peers"])

    @cached_property
    def handlers(self) -> Figures:
        sizes = self._sizes
        found = handlers(self._host, PYTHON, sizes.jobs, 1.0, sizes.at_once, sizes.rounds, self._say)
        self.missing |= found["missing"]
        return dict(found["handlers"])

    @cached_property
    def pickup(self) -> Figures:
        self._say("pickup in the same process")
        return dict(pickup(self._host, [SAME_PROCESS], self._sizes.pickups, self._sizes.rounds))

    @cached_property
    def limit(self) -> Figures:
        sizes = self._sizes
        return self._by_store("limit", lambda store: limits(self._host, store, BATCH, sizes.limit_jobs, sizes.rounds))

    @cached_property
    def submit(self) -> Figures:
        sizes = self._sizes
        return self._by_store(
            "submit",
            lambda store: submit(self._host, store, sizes.submits, sizes.callers, sizes.each, sizes.rounds),
        )

    @cached_property
    def history(self) -> Figures:
        sizes = self._sizes
        return self._by_store(
            "history", lambda store: history(self._host, store, sizes.events, sizes.rounds, self._say)
        )

    @cached_property
    def http(self) -> Figures:
        sizes = self._sizes
        return self._by_store(
            "http",
            lambda store: {"1": http(self._host, store, 1, sizes.requests, sizes.clients, sizes.rounds)},
        )

    @cached_property
    def workers(self) -> Figures:
        sizes = self._sizes
        return self._by_store(
            "workers", lambda store: workers(self._host, store, WORKERS, [1], sizes.jobs, sizes.rounds, self._say)
        )

    @cached_property
    def idle(self) -> Figures:
        return self._beside("idle", self._sizes.beside)

    @cached_property
    def queued(self) -> Figures:
        return self._beside("queued", self._sizes.beside)

    @cached_property
    def finished(self) -> Figures:
        return self._beside("finished", self._sizes.finished)

    def _beside(self, case: str, count: int) -> Figures:
        rounds = 2 * self._sizes.rounds
        return self._by_store(case, lambda store: beside(self._host, store, case, count, rounds, self._say))

    @cached_property
    def held(self) -> Figures:
        return self._by_store("held", lambda store: held(self._host, store, self._sizes.held_s, self._say))

    @cached_property
    def memory(self) -> Figures:
        return self._by_store("memory", lambda store: memory(self._host, store, self._sizes.in_memory))

    @cached_property
    def flow(self) -> Figures:
        sizes = self._sizes
        return self._by_store("flow", lambda store: flow(self._host, store, sizes.stages, sizes.stage, sizes.rounds))

    def _by_store(self, name: str, of: Callable[[str], Figures]) -> Figures:
        found = {}
        for store in STORES:
            self._say(f"{name}, {store}")
            found[store] = of(store)
        return found

    def figures(self) -> Figures:
        """All that was measured so far, under the names that the commands give it."""
        # A cached property keeps its value under its own name.
        made = {name: value for name, value in vars(self).items() if hasattr(type(self), name)}
        growth = {name: made.pop(name) for name in GROWTH if name in made}
        return {**made, **({"growth": growth} if growth else {})}
