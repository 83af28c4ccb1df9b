"""What can be set side by side: onetray in its ways, and its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import environments


@dataclass(frozen=True)
class Side:
    """Something to measure: a program, the database it runs on, and who works in which process."""

    program: str
    store: str
    command: Callable[[str], list[str]] = environments.ours
    roles: tuple[str, ...] = ("work", "submit")
    share: float = 1.0
    """Of the jobs that a fast side is given. A slow one would take minutes for as many, and its rate needs fewer."""


OURS = {
    "sqlite_same_process": Side("ours", "sqlite", roles=("both",)),
    "sqlite": Side("ours", "sqlite"),
    "postgres": Side("ours", "postgres"),
}
PEERS = {
    "procrastinate": Side("procrastinate", "postgres", environments.python, share=0.05),
    "pgqueuer": Side("pgqueuer", "postgres", environments.python),
}
SIDES = {**OURS, **PEERS}
"""For the questions that are asked about single jobs."""

OURS_BESIDE_PEERS = {"onetray-sqlite": OURS["sqlite"], "onetray-postgres": OURS["postgres"]}
BESIDE = {
    **OURS_BESIDE_PEERS,
    **PEERS,
    "dbos": Side("dbos", "postgres", environments.python, share=0.05),
    "huey-sqlite": Side("huey", "sqlite", environments.python, share=0.25),
    "graphile-worker": Side("graphile_worker", "postgres", environments.node),
    "pg-boss": Side("pg_boss", "postgres", environments.node),
    "huey-redis": Side("huey", "redis", environments.python, share=0.25),
    "celery": Side("celery", "redis", environments.python, share=0.05),
    "rq": Side("rq", "redis", environments.python, share=0.02),
    "taskiq": Side("taskiq", "redis", environments.python, share=0.25),
    "bullmq": Side("bullmq", "redis", environments.node),
}
"""For `./go bench peers`."""

PYTHON = [name for name, side in BESIDE.items() if side.command is not environments.node]
"""Those whose handlers are written in Python, ours too."""
ON_POSTGRES = [name for name, side in BESIDE.items() if side.store == "postgres" and name not in OURS_BESIDE_PEERS]
"""The peers on PostgreSQL."""
