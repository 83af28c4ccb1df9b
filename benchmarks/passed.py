"""Does it become slower with what has gone through? The first jobs of a database beside those after many others."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.checks import must_be_done
from benchmarks.core import drain, must_pass, open_engine
from benchmarks.host import Host
from onetray.domain.commands import Submit
from onetray.engine import Engine

BATCH, AT_ONCE = 500, 5_000
"""Tasks of a claim, and tasks that are queued at a time."""


def passed(host: Host, store: str, jobs: int, first: int, say: Callable[[str], None]) -> dict[str, float]:
    """The rate of claim + report after so many jobs, as a share of that of the first ones in a new database.

    The two take turns.
    """
    with host.database(store) as url, host.database(store) as other, open_engine(url) as old:
        old.janitor().start()  # As beside every worker: it sweeps what is over.
        for done in range(0, jobs, first):
            _through(old, min(first, jobs - done))
            say(f"{store}: {min(done + first, jobs):,} of {jobs:,} jobs have gone through")
        with open_engine(other) as new:
            # The first of each warm up.
            pairs = [(_through(old, some), _through(new, some)) for some in _parts(first)][1:]
        must_be_done(old, jobs + first)
    after, before = (sum(took) for took in zip(*pairs, strict=True))
    turned = first - _parts(first)[0]
    return {
        "share": round(before / after, 3),
        "per_s": round(turned / after, 1),
        "first_per_s": round(turned / before, 1),
    }


def _parts(jobs: int) -> list[int]:
    """Turns: of as many jobs as are queued at a time, and at least two."""
    size = min(AT_ONCE, -(-jobs // 2))
    return [min(size, jobs - start) for start in range(0, jobs, size)]


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
