"""Reads of a large log by the engine, beside the same by hand on a log that has a row for each event.

Owns the two databases, which have as many finished jobs with four events each, and the turns of their readers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

from benchmarks.checks import EVENTS, must_add_up
from benchmarks.core import open_engine
from benchmarks.crowd import SERIES, fill, finished
from benchmarks.host import Host, settle
from benchmarks.limit import ACTOR, SUBMITTER
from benchmarks.log import BATCH, LOGS, PAGE
from benchmarks.log_shapes import ENCODINGS, ROWS
from benchmarks.log_writes import Log
from onetray.engine import Engine

HISTORIES, PAGES = 200, 40
"""Reads in a round."""
WARM_UP = 5
STEP = 100 * BATCH
"""Jobs that are filled in at a time."""
NOW = 1_700_000_000_000_000
_ID = {
    "postgres": "CAST('00000000-0000-7000-8000-' || lpad(CAST(n.i AS text), 12, '0') AS uuid)",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', n.i)",
}
_TASKS = """
INSERT INTO onetray.task (key, id, job, ns, queue, kind, policy, version, fence, priority, attempts, max_attempts,
    spared, created_at, updated_at, run_at, started_at, finished_at, state, payload)
SELECT n.i, {id}, n.i, 1, 1, 1, 1, 4, 1, 0, 1, 3, 0, {now}, {now}, {now}, {now}, {now}, 'succeeded', '{{"number": 0}}'
FROM {series}"""
_EVENTS = """
INSERT INTO onetray.event (entity, job, ts, ns, version, fence, attempts, type, was, state, actor)
SELECT n.i, n.i, {now}, 1, m.version, 1, m.attempts, m.type, m.was, m.state, m.actor
FROM {series} CROSS JOIN (
    SELECT 1 AS version, 0 AS attempts, 'task.submitted' AS type, NULL AS was, 'queued' AS state, '{submitter}' AS actor
    UNION ALL SELECT 2, 1, 'task.claimed', 'queued', 'assigned', '{actor}'
    UNION ALL SELECT 3, 1, 'task.started', 'assigned', 'running', '{actor}'
    UNION ALL SELECT 4, 1, 'task.succeeded', 'running', 'succeeded', '{actor}'
) AS m ORDER BY n.i / {batch}, m.version, n.i"""
_KEY = {
    "postgres": "SELECT key FROM onetray.task WHERE id = CAST(:id AS uuid)",
    "sqlite": "SELECT key FROM task WHERE id = :id",
}
_ID_OF = "SELECT CAST(id AS text) FROM onetray.task WHERE key = (SELECT min(key) + :nth FROM onetray.task)"


def history(host: Host, store: str, events: int, rounds: int, say: Callable[[str], None]) -> dict[str, float]:
    """Median ms to read one job's history, and a page of the feed; the engine's as multiples of those by hand."""
    jobs = max(2, events // EVENTS)
    with (
        host.database(store) as url,
        host.database(store) as other,
        closing(LOGS[store](other, ENCODINGS[ROWS])) as log,
    ):
        fill(store, url, finished, jobs, say)
        _fill_by_hand(log, jobs, say)
        settle(store, other)
        with open_engine(url) as engine:
            must_add_up(engine)
            return _figures(_turns(engine, log, jobs, rounds))


def _fill_by_hand(log: Log, jobs: int, say: Callable[[str], None]) -> None:
    words = {"id": _ID[log.store], "now": NOW, "submitter": SUBMITTER, "actor": ACTOR, "batch": BATCH}
    for first in range(1, jobs + 1, STEP):
        last = min(first + STEP - 1, jobs)
        series = SERIES[log.store].format(first=first, last=last)
        for statement in (_TASKS, _EVENTS):
            log.query(statement.format(series=series, **words))
        say(f"{log.store}: {last:,} of {jobs:,} jobs with a row for each event")


def _turns(engine: Engine, log: Log, jobs: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each read. The two take turns, and read the same jobs and pages that begin with the same jobs."""
    chance, took = random.Random(1), dict[str, list[float]]()
    page = min(PAGE, jobs)
    for _ in range(rounds * HISTORIES + WARM_UP):
        ids = _ids(engine, log, chance.randrange(jobs))
        _timed(took, "history", [partial(engine.events, ids[0]), partial(_by_hand, log, ids[1])], EVENTS)
    for _ in range(rounds * PAGES + WARM_UP):
        # In the first half: more than a page follows.
        ids = _ids(engine, log, chance.randrange(jobs // 2))
        after, after_by_hand = engine.events(ids[0])[0].id, _by_hand(log, ids[1])[0].id
        _timed(took, "page", [partial(_page, engine, after, page), partial(log.page, after_by_hand, page)], page)
    return {name: ms[WARM_UP:] for name, ms in took.items()}


def _ids(engine: Engine, log: Log, nth: int) -> tuple[str, str]:
    """The public ids of one job: what a caller has."""
    return str(engine.store.read_sql(_ID_OF, nth=nth)[0][0]), str(log.query(_ID_OF, nth=nth)[0][0])


def _by_hand(log: Log, id_: str) -> list[Any]:
    return log.history(log.query(_KEY[log.store], id=id_)[0][0])


def _page(engine: Engine, after: int, limit: int) -> list[Any]:
    return list(engine.feed.read(after, limit).events)


def _timed(took: dict[str, list[float]], name: str, reads: list[Callable[[], list[Any]]], count: int) -> None:
    for suffix, read in zip(("_ms", "_by_hand_ms"), reads, strict=True):
        began = time.perf_counter()
        found = read()
        took.setdefault(name + suffix, []).append((time.perf_counter() - began) * 1000)
        assert len(found) == count, f"{len(found)} of {count} events were read"


def _figures(took: dict[str, list[float]]) -> dict[str, float]:
    found = {name: median(ms) for name, ms in took.items()}
    ratios = {f"{of}_ratio": found[f"{of}_ms"] / found[f"{of}_by_hand_ms"] for of in ("history", "page")}
    return {name: round(value, 3) for name, value in {**found, **ratios}.items()}
