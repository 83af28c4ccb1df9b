"""What the log costs in each of its encodings, and how fast it is read: the same drain by hand, without an engine.

Owns the rounds. Each encoding takes its turn in each round on a fresh database, with tasks in the order of their keys
and shuffled; its figures are medians, beside those of a row for each event.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import median
from typing import Any

from benchmarks.checks import EVENTS
from benchmarks.host import Host, settle, size_of
from benchmarks.log_postgres import PostgresLog
from benchmarks.log_shapes import ENCODINGS, ROWS
from benchmarks.log_sqlite import SqliteLog
from benchmarks.log_writes import Held, Log

LOGS: dict[str, Callable[..., Log]] = {"sqlite": SqliteLog, "postgres": PostgresLog}
ORDERS = ("in_order", "shuffled")
BATCH, AHEAD = 500, 2_000
"""Tasks of a claim and of a report; tasks that are held at a time if they are reported in another order."""
PAGE, PAGES, HISTORIES = 1_000, 40, 200
Figures = dict[str, Any]


def log(
    host: Host, store: str, names: Sequence[str], orders: Sequence[str], events: int, rounds: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Figures]]:  # fmt: skip
    """The medians of each encoding in each order of the tasks, and their ratios to a row for each event."""
    jobs = max(1, events // EVENTS)
    measured: dict[str, dict[str, list[Figures]]] = {order: {name: [] for name in names} for order in orders}
    for n in range(rounds):
        turn = n % len(names)
        for order in orders:
            for name in [*names[turn:], *names[:turn]]:
                say(f"{store}, round {n + 1} of {rounds}: {name}, {order}, {jobs * EVENTS:,} events")
                with host.database(store) as url:
                    measured[order][name].append(_round(host, store, url, name, jobs, order, random.Random(n)))
    return {order: _beside_rows({name: _medians(some) for name, some in found.items()})
            for order, found in measured.items()}  # fmt: skip


def _round(host: Host, store: str, url: str, name: str, jobs: int, order: str, chance: random.Random) -> Figures:
    with closing(LOGS[store](url, ENCODINGS[name])) as log:
        before = size_of(store, url) or 0
        client, server, wall = time.process_time(), host.server_cpu_s(store), time.perf_counter()
        submit(log, jobs, order, chance)
        drain(log, order, chance)
        figures: Figures = {
            "per_s": jobs / (time.perf_counter() - wall),
            "client_us": (time.process_time() - client) / jobs * 1e6,
            "server_us": (host.server_cpu_s(store) - server) / jobs * 1e6,
        }
        figures |= {"bytes": ((size_of(store, url) or 0) - before) / jobs, "log_bytes": log.log_bytes() / jobs}
        settle(store, url)
        return {**figures, **_reads(log, jobs, chance)}


def submit(log: Log, jobs: int, order: str, chance: random.Random) -> None:
    for start in range(0, jobs, BATCH):
        count = min(BATCH, jobs - start)
        # Claims are in the order of the ranks: tasks of equal rank in that of their keys.
        log.submit([chance.randrange(2**30) if order == "shuffled" else 0 for _ in range(count)])


def drain(log: Log, order: str, chance: random.Random) -> None:
    """Claim and report. Shuffled, a report has tasks of several claims, in any order."""
    held: list[Held] = []
    ahead = AHEAD if order == "shuffled" else BATCH
    while True:
        while len(held) < ahead and (claimed := log.claim(BATCH)):
            held += claimed
        if not held:
            return
        if order == "shuffled":
            chance.shuffle(held)
        log.report(held[:BATCH])
        del held[:BATCH]


def _reads(log: Log, jobs: int, chance: random.Random) -> Figures:
    keys = [chance.randint(1, jobs) for _ in range(HISTORIES)]
    page = min(PAGE, jobs * EVENTS)
    cursors = [chance.randint(0, jobs * EVENTS - page) for _ in range(PAGES)]
    return {
        "history_ms": median(_ms(lambda key=key: log.history(key), EVENTS) for key in keys),
        "page_ms": median(_ms(lambda after=after: log.page(after, page), page) for after in cursors),
    }


def _ms(read: Callable[[], list[Any]], count: int) -> float:
    began = time.perf_counter()
    found = read()
    took = time.perf_counter() - began
    assert len(found) == count, f"{len(found)} of {count} events were read"
    return took * 1000


def _medians(rounds: list[Figures]) -> Figures:
    return {name: median(figures[name] for figures in rounds) for name in rounds[0]}


def _beside_rows(found: dict[str, Figures]) -> dict[str, Figures]:
    for figures in found.values():
        figures["cpu_us"] = figures["client_us"] + figures["server_us"]
    for figures in found.values():
        if ROWS in found:
            measures = ("bytes", "cpu_us", "history_ms", "page_ms")
            figures |= {f"x_{measure}": figures[measure] / found[ROWS][measure] for measure in measures}
    return {name: {key: round(value, 3) for key, value in figures.items()} for name, figures in found.items()}
