"""Many claimers, limits for many keys, kills and cancels: from the log, no limit is ever passed."""

from __future__ import annotations

from tests.support.limit_load import run_limit_load

# Processes, threads of each, and tasks.
SHAPES = {"sqlite": (4, 4, 120), "postgresql": (8, 8, 200)}


def test_no_key_ever_runs_more_tasks_than_its_limit(database_url: str) -> None:
    processes, threads, tasks = SHAPES[database_url.split(":")[0]]
    outcome = run_limit_load(database_url, tasks=tasks, processes=processes, threads=threads, keys=5, kills=1)
    assert not outcome.faults, outcome.faults[:20]
    assert outcome.most[1] == 1, "too little happened"
    assert outcome.most[3] > 1, "too little happened"
