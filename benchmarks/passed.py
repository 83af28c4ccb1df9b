"""Does it become slower with what has gone through? The first jobs of a database beside those after many others."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.checks import must_be_done
from benchmarks.core import drain, must_pass, open_engine
from benchmarks.host import Host
from onetray.commands import Submit
from onetray.engine import Engine

BATCH, AT_ONCE = 500, 5_000
"""Tasks of a claim, and tasks that are queued at a time."""


def passed(host: Host, store: str, jobs: int, first: int, say: Callable[[str], None]) -> dict[str, float]:
    """The rate of claim + report after so many jobs, as a share of that of the first ones."""
    with host.database(store) as url, open_engine(url) as engine:
        engine.janitor().start()  # As beside every worker: it sweeps what is over.
        before = first / _through(engine, first)
        for done in range(first, jobs, first):
            say(f"{store}: {done:,} of {jobs:,} jobs have gone through")
            _through(engine, min(first, jobs - done))
        after = first / _through(engine, first)
        must_be_done(engine, max(jobs, first) + first)
    return {"share": round(after / before, 3), "per_s": round(after, 1), "first_per_s": round(before, 1)}


def _through(engine: Engine, jobs: int) -> float:
    """Submit and finish so many; the seconds that claims and reports took."""
    took = 0.0
    for start in range(0, jobs, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, jobs))
        must_pass(engine, [Submit(kind="noop", payload={"number": n}) for n in numbers])
        began = time.perf_counter()
        drain(engine, BATCH)
        took += time.perf_counter() - began
    return took
