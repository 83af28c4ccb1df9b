"""Several workers on one database: how fast they are together, and how evenly work and queues are shared.

Owns the rounds and what is read from a finished database. The workers are in domain/worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.checks import must_have_ended
from benchmarks.conflicts import conflicts
from benchmarks.core import open_engine
from benchmarks.fleet import fleet, lay_out, let_go, seconds_of_work, until_ended
from benchmarks.host import Host
from onetray.domain.lifecycle import TASK
from onetray.engine import Engine

EARLY = 0.1
"""Of the longest queue: when so much of it is done, the others are looked at."""
Figures = dict[str, float]
_BY_WORKER = "SELECT actor, count(*) FROM onetray.event WHERE type = '{}' GROUP BY actor"
_BY_QUEUE = """
SELECT q.name, t.finished_at FROM onetray.task AS t JOIN onetray.queue AS q ON q.key = t.queue ORDER BY t.finished_at"""


def workers(
    host: Host, store: str, counts: Sequence[int], queues: Sequence[int], jobs: int, rounds: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Figures]]:  # fmt: skip
    """For each number of queues and each number of workers: the medians of all rounds."""
    measured: dict[tuple[int, int], list[Figures]] = {}
    for n in range(rounds):
        for many in queues:
            for count in counts:
                say(f"{store}, round {n + 1} of {rounds}: {count} workers, {many} queues, {jobs:,} jobs")
                measured.setdefault((many, count), []).append(_round(host, store, count, lengths(many, jobs)))
    return {str(many): {str(count): _together(measured[many, count]) for count in counts} for many in queues}


def lengths(queues: int, jobs: int) -> dict[str, int]:
    """Each queue is half as long as the one before, and none is empty."""
    shares = [2.0**-n for n in range(queues)]
    return {f"q{n + 1}": max(1, round(jobs * share / sum(shares))) for n, share in enumerate(shares)}


def _round(host: Host, store: str, count: int, queues: dict[str, int]) -> Figures:
    jobs = sum(queues.values())
    with host.database(store) as url:
        with conflicts(host, store, url) as ended, open_engine(url) as engine:
            lay_out(engine, queues)
            with fleet(engine, url, count, queues) as processes:
                let_go(engine, queues)
                until_ended(engine, processes)
            must_have_ended(engine, jobs)
            figures = {"drain": jobs / seconds_of_work(engine), **_shares(engine, count, jobs)}
            if len(queues) > 1:
                figures |= _evenness(engine, queues)
        return {**figures, **ended}


def _shares(engine: Engine, count: int, jobs: int) -> Figures:
    """What the laziest and the busiest worker did, as multiples of an equal share."""
    did = [int(n) for _, n in engine.store.read_sql(_BY_WORKER.format(TASK.succeed.event))]
    did += [0] * (count - len(did))
    return {"least_share": min(did) * count / jobs, "most_share": max(did) * count / jobs}


def _evenness(engine: Engine, queues: dict[str, int]) -> Figures:
    """How far the shortest queue is when a tenth of the longest is done.

    `short_done` is the share of it that has ended; `short_to_long` sets what was served of it beside what was served
    of the longest: 1.0 is turn by turn, and it falls once the shortest is empty.
    """
    ends = engine.store.read_sql(_BY_QUEUE)
    longest, shortest = max(queues, key=queues.__getitem__), min(queues, key=queues.__getitem__)
    early = max(1, int(queues[longest] * EARLY))
    at = [end for queue, end in ends if queue == longest][early - 1]
    done = sum(queue == shortest and end <= at for queue, end in ends)
    return {"short_done": done / queues[shortest], "short_to_long": done / early}


def _together(rounds: list[Figures]) -> Figures:
    """Medians, but of what should not happen at all the sum."""
    return {
        name: sum(figures[name] for figures in rounds)
        if name in ("deadlocks", "serialization_failures")
        else round(median(figures[name] for figures in rounds), 3)
        for name in rounds[0]
    }
