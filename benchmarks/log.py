"""What the log costs in each of its encodings, and how fast it is read: the same drain by hand, without an engine.

Owns the rounds. Each encoding takes its turn in each round on a fresh database, with tasks in the order of their keys
and shuffled; all are read in turns. Figures are medians, beside those of a row for each event.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
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
            say(f"{store}, round {n + 1} of {rounds}: {', '.join(names)}; {order}, {jobs * EVENTS:,} events each")
            for name, figures in _round(host, store, [*names[turn:], *names[:turn]], jobs, order, n).items():
                measured[order][name].append(figures)
    return {order: _beside_rows({name: _medians(some) for name, some in found.items()})
            for order, found in measured.items()}  # fmt: skip


def _round(host: Host, store: str, names: Sequence[str], jobs: int, order: str, n: int) -> dict[str, Figures]:
    """Write one log after another; then read all of them in turns, so that what else the machine does hits all."""
    with ExitStack() as stack:
        logs, written = dict[str, Log](), dict[str, Figures]()
        for name in names:
            url = stack.enter_context(host.database(store))
            logs[name] = stack.enter_context(closing(LOGS[store](url, ENCODINGS[name])))
            written[name] = _writes(host, store, url, logs[name], jobs, order, random.Random(n))
            settle(store, url)
        read = _reads(logs, jobs, random.Random(n))
        return {name: {**written[name], **read[name]} for name in names}


def _writes(host: Host, store: str, url: str, log: Log, jobs: int, order: str, chance: random.Random) -> Figures:
    before = size_of(store, url) or 0
    client, server, wall = time.process_time(), host.server_cpu_s(store), time.perf_counter()
    submit(log, jobs, order, chance)
    drain(log, order, chance)
    return {
        "per_s": jobs / (time.perf_counter() - wall),
        "client_us": (time.process_time() - client) / jobs * 1e6,
        "server_us": (host.server_cpu_s(store) - server) / jobs * 1e6,
        "bytes": ((size_of(store, url) or 0) - before) / jobs,
        "log_bytes": log.log_bytes() / jobs,
    }


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


def _reads(logs: dict[str, Log], jobs: int, chance: random.Random) -> dict[str, Figures]:
    page = min(PAGE, jobs * EVENTS)
    took: dict[str, dict[str, list[float]]] = {name: {"history_ms": [], "page_ms": []} for name in logs}
    for key in [chance.randint(1, jobs) for _ in range(HISTORIES)]:
        for name, log in logs.items():
            took[name]["history_ms"].append(_ms(partial(log.history, key), EVENTS))
    for after in [chance.randint(0, jobs * EVENTS - page) for _ in range(PAGES)]:
        for name, log in logs.items():
            took[name]["page_ms"].append(_ms(partial(log.page, after, page), page))
    return {name: {measure: median(ms) for measure, ms in measures.items()} for name, measures in took.items()}


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
