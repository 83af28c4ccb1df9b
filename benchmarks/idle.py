"""What a worker costs that has nothing to do: CPU time as a share of one core.

Owns the wait. Needs /proc, so Linux.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.catalogue import SIDES
from benchmarks.host import Host, cpu_s
from benchmarks.stage import Stage

SETTLE_S = 2.0
"""After the first job: what a start brings with it is not counted."""


def idle(host: Host, sides: Sequence[str], seconds: float) -> dict[str, dict[str, float]]:
    """Percent of a core for each side: its worker, and the database server meanwhile."""
    return {name: _idle(host, name, seconds) for name in sides}


def _idle(host: Host, name: str, seconds: float) -> dict[str, float]:
    side = SIDES[name]
    with host.database(side.store) as url, Stage(side, url) as stage:
        stage.pickup_s(0)
        time.sleep(SETTLE_S)
        worker, server = cpu_s(stage.worker), host.server_cpu_s()
        time.sleep(seconds)
        worker, server = cpu_s(stage.worker) - worker, host.server_cpu_s() - server
    figures = (
        {"worker_percent": worker} if side.store == "sqlite" else {"worker_percent": worker, "server_percent": server}
    )
    return {figure: round(spent / seconds * 100, 2) for figure, spent in figures.items()}
