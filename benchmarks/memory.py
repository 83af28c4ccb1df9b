"""The memory of a worker that has much to do: it must hold what it works on, not what is queued.

Owns the three looks at it. Needs /proc, so Linux.
"""

from __future__ import annotations

from benchmarks.checks import must_have_ended
from benchmarks.core import open_engine
from benchmarks.fleet import fleet, lay_out, let_go, until_ended
from benchmarks.host import Host, peak_mib, rss_mib


def memory(host: Host, store: str, jobs: int) -> dict[str, float]:
    """MiB of a worker with so many tasks queued: once it is ready, at its highest, and when all are done."""
    queues = {"default": jobs}
    with host.database(store) as url, open_engine(url) as engine:
        lay_out(engine, queues)
        with fleet(engine, url) as processes:
            worker = processes[0].pid
            start = rss_mib(worker)
            let_go(engine, queues)
            until_ended(engine, processes)
            found = {"start_mib": start, "peak_mib": peak_mib(worker), "end_mib": rss_mib(worker)}
        must_have_ended(engine, jobs)
    return {name: round(mib, 1) for name, mib in found.items()}
